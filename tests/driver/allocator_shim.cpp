// The allocator of csrc as C functions, for tests/driver/test_allocator.py.
#include "../../lazy_backend/csrc/allocator.h"

extern "C" {
const char* shim_use(const lazy_driver_api* table) {
  static std::string text;
  try {
    lazy::use_driver(table);
    return nullptr;
  } catch (const lazy::DriverError& error) {
    text = error.what();
    return text.c_str();
  }
}
// Null on failure; `text` and `status` say why.
lazy::Block* shim_allocate(uint64_t bytes, char* text, int* status) {
  try {
    return lazy::allocator(0).allocate(bytes);
  } catch (const lazy::DriverError& error) {
    snprintf(text, 512, "%s", error.what());
    *status = error.status;
    return nullptr;
  }
}
uint64_t shim_bytes(const lazy::Block* block) { return block->bytes; }
uint64_t shim_place(const lazy::Block* block) { return reinterpret_cast<uint64_t>(block->host); }
uint64_t shim_offset(const lazy::Block* block) { return block->offset; }
void shim_free(lazy::Block* block) { lazy::allocator(0).free(block); }
void shim_empty_cache() { lazy::allocator(0).empty_cache(); }
void shim_reserve(const uint64_t* segments, uint64_t count) { lazy::allocator(0).reserve({segments, segments + count}); }
uint64_t shim_segments() { return lazy::allocator(0).segments().size(); }
void shim_touch() { lazy::allocator(0).touch(); }
void shim_set_limit(uint64_t bytes) { lazy::allocator(0).set_limit(bytes); }
void shim_reset_peak() { lazy::allocator(0).reset_peak_stats(); }
// -1 where there is no such statistic.
int64_t shim_stat(const char* name) {
  for (const auto& [key, value] : lazy::allocator(0).stats().flatten()) {
    if (key == name) return value;
  }
  return -1;
}
}
