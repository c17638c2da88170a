#include "allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // before glibc 2.35
#endif

namespace lazy {
namespace {

// PyTorch's CUDA allocator's sizes; its users' scripts are tuned to them.
constexpr uint64_t kRound = 512;                // smallest block
constexpr uint64_t kSmall = 1ull << 20;         // requests up to this come from the small pool
constexpr uint64_t kSmallSegment = 2ull << 20;
constexpr uint64_t kLargeSegment = 20ull << 20; // shared by requests below kSharedRequest
constexpr uint64_t kSharedRequest = 10ull << 20;
constexpr uint64_t kSegmentRound = 2ull << 20;
constexpr uint64_t kTouched = 1ull << 20;       // at a time: 0.3 ms
constexpr uintptr_t kPage = 4096;

// With LAZY_CHECK=memory every block is an allocation of the driver's, so that a driver that watches
// its memory (the simulators) sees each block's bounds and end.
bool is_checking() {
  const char* text = std::getenv("LAZY_CHECK");
  return text && std::string(text) == "memory";
}

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

uint64_t segment_bytes(uint64_t bytes, bool small) {
  if (small) return kSmallSegment;
  return bytes < kSharedRequest ? kLargeSegment : round_up(bytes, kSegmentRound);
}

std::string in_mib(uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

constexpr const char* kKindNames[kStatKinds] = {"allocation",     "segment",              "inactive_split",
                                                "allocated_bytes", "reserved_bytes",      "inactive_split_bytes",
                                                "requested_bytes"};
constexpr const char* kPoolNames[kStatPools] = {"all", "small_pool", "large_pool"};

}  // namespace

void Stat::add(int64_t amount) {
  current += amount;
  allocated += amount;
  peak = std::max(peak, current);
}

void Stat::subtract(int64_t amount) {
  current -= amount;
  freed += amount;
}

std::vector<std::pair<std::string, int64_t>> MemoryStats::flatten() const {
  std::vector<std::pair<std::string, int64_t>> flat;
  const auto put = [&](const std::string& kind, int pool, const Stat& s) {
    const std::string prefix = kind + "." + kPoolNames[pool] + ".";
    flat.insert(flat.end(), {{prefix + "current", s.current},
                             {prefix + "peak", s.peak},
                             {prefix + "allocated", s.allocated},
                             {prefix + "freed", s.freed}});
  };
  for (int pool = 0; pool < kStatPools; ++pool) {
    for (int kind = 0; kind < kStatKinds; ++kind) put(kKindNames[kind], pool, stats[kind][pool]);
    // A freed block is reusable at once, so active and allocated never differ.
    put("active", pool, stats[kAllocation][pool]);
    put("active_bytes", pool, stats[kAllocatedBytes][pool]);
  }
  flat.insert(flat.end(), {{"num_alloc_retries", num_alloc_retries},
                           {"num_ooms", num_ooms},
                           {"num_device_alloc", num_device_alloc},
                           {"num_device_free", num_device_free}});
  return flat;
}

bool Allocator::BySize::operator()(const Block* a, const Block* b) const {
  if (a->bytes != b->bytes) return a->bytes < b->bytes;
  if (a->mem != b->mem) return std::less<>()(a->mem, b->mem);
  return a->offset < b->offset;
}

Allocator::Allocator(Device& device)
    : device_(device),
      alignment_(round_up(kRound, std::max<uint64_t>(1, device.props.mem_alignment))),
      checking_(is_checking()) {}

void Allocator::count(StatKind kind, const Block* block, int64_t amount) {
  for (const int pool : {static_cast<int>(kAll), static_cast<int>(block->small ? kSmallPool : kLargePool)}) {
    Stat& stat = stats_.stats[kind][pool];
    amount >= 0 ? stat.add(amount) : stat.subtract(-amount);
  }
}

// A free piece of a split segment is inactive memory: reserved, and not returnable to the driver.
void Allocator::count_inactive(const Block* block, int sign) {
  if (!block->previous && !block->next) return;
  count(kInactiveSplit, block, sign);
  count(kInactiveSplitBytes, block, sign * static_cast<int64_t>(block->bytes));
}

Block* Allocator::allocate(uint64_t requested, const Buffer* owner) {
  const uint64_t bytes = checking_ ? std::max<uint64_t>(requested, 1)
                                   : round_up(std::max<uint64_t>(requested, 1), alignment_);
  const bool small = bytes <= kSmall;
  std::lock_guard<std::mutex> lock(mutex_);
  Block* block = take_cached(bytes, small);
  if (!block) block = take_segment(bytes, small);
  if (!unused_.empty()) unused_.erase(block->mem);
  split(block, bytes);
  block->free = false;
  block->requested = requested;
  block->owner = owner;
  block->newer = nullptr;
  block->older = newest_;
  if (newest_) newest_->newer = block;
  newest_ = block;
  count(kAllocation, block, 1);
  count(kAllocatedBytes, block, static_cast<int64_t>(block->bytes));
  count(kRequestedBytes, block, static_cast<int64_t>(requested));
  return block;
}

void Allocator::free(Block* block) {
  std::lock_guard<std::mutex> lock(mutex_);
  count(kAllocation, block, -1);
  count(kAllocatedBytes, block, -static_cast<int64_t>(block->bytes));
  count(kRequestedBytes, block, -static_cast<int64_t>(block->requested));
  block->free = true;
  if (block->older) block->older->newer = block->newer;
  (block->newer ? block->newer->older : newest_) = block->older;
  for (Block* neighbour : {block->previous, block->next}) {
    if (neighbour && neighbour->free) merge(block, neighbour);
  }
  pool(block).insert(block);
  count_inactive(block, 1);
  if (checking_) release_segments();
}

void Allocator::each_live(const std::function<void(const Buffer*, uint64_t)>& visit) const {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Block* block = newest_; block; block = block->older) visit(block->owner, block->bytes);
}

// The smallest free block that fits, whole: allocate() splits it.
Block* Allocator::take_cached(uint64_t bytes, bool small) {
  Block wanted;
  wanted.bytes = bytes;
  Pool& blocks = small ? small_ : large_;
  const auto found = blocks.lower_bound(&wanted);
  if (found == blocks.end()) return nullptr;
  Block* block = *found;
  blocks.erase(found);
  count_inactive(block, -1);
  return block;
}

Block* Allocator::take_segment(uint64_t bytes, bool small) {
  // The exact size is the last resort where a whole shared segment no longer fits.
  const uint64_t sizes[] = {checking_ ? bytes : segment_bytes(bytes, small), bytes};
  for (const bool retry : {false, true}) {
    if (retry) {
      release_segments();
      ++stats_.num_alloc_retries;
    }
    for (const uint64_t size : sizes) {
      if (Block* block = new_segment(size, small)) return block;
    }
  }
  ++stats_.num_ooms;
  const auto bytes_of = [&](StatKind kind) { return static_cast<uint64_t>(stats_.stats[kind][kAll].current); };
  throw DriverError(LAZY_OUT_OF_MEMORY,
                    "out of memory on lazy:" + std::to_string(device_.index) + ": tried to allocate " +
                        std::to_string(bytes) + " bytes (" + in_mib(bytes) + "); " + in_mib(bytes_of(kAllocatedBytes)) +
                        " allocated, " + in_mib(bytes_of(kReservedBytes)) + " reserved, device memory " +
                        in_mib(device_.props.global_memory_bytes) + (limit_ ? ", limit " + in_mib(limit_) : ""));
}

// Null where memory is out.
Block* Allocator::new_segment(uint64_t bytes, bool small) {
  const lazy_mem mem = try_alloc(bytes);
  if (!mem) return nullptr;
  auto* block = new Block;
  block->mem = mem;
  block->bytes = bytes;
  block->host = device_.host_pointer(mem);
  block->small = small;
  segments_[mem] = bytes;
  ++stats_.num_device_alloc;
  count(kSegment, block, 1);
  count(kReservedBytes, block, static_cast<int64_t>(bytes));
  return block;
}

// Null when the limit or the driver says that memory is out.
lazy_mem Allocator::try_alloc(uint64_t bytes) {
  const uint64_t reserved = static_cast<uint64_t>(stats_.stats[kReservedBytes][kAll].current);
  if (limit_ && reserved + bytes > limit_) return nullptr;
  if (device_.props.max_alloc_bytes && bytes > device_.props.max_alloc_bytes) return nullptr;
  try {
    return device_.alloc(bytes);
  } catch (const DriverError& error) {
    if (error.status != LAZY_OUT_OF_MEMORY) throw;
    return nullptr;
  }
}

// Gives the tail of `block` beyond `bytes` back to the pool, unless the rest is too small to be of use
// (in the large pool, a rest that only the small pool could serve).
void Allocator::split(Block* block, uint64_t bytes) {
  const uint64_t rest = block->bytes - bytes;
  if (rest < (block->small ? alignment_ : kSmall + 1)) return;
  auto* tail = new Block(*block);
  tail->offset += bytes;
  tail->bytes = rest;
  tail->host = block->host ? block->host + bytes : nullptr;
  tail->previous = block;
  tail->free = true;
  if (tail->next) tail->next->previous = tail;
  block->next = tail;
  block->bytes = bytes;
  pool(tail).insert(tail);
  count_inactive(tail, 1);
}

void Allocator::merge(Block* block, Block* neighbour) {
  pool(neighbour).erase(neighbour);
  count_inactive(neighbour, -1);
  block->bytes += neighbour->bytes;
  if (neighbour == block->previous) {
    block->offset = neighbour->offset;
    block->host = neighbour->host;
    block->previous = neighbour->previous;
    if (block->previous) block->previous->next = block;
  } else {
    block->next = neighbour->next;
    if (block->next) block->next->previous = block;
  }
  delete neighbour;
}

void Allocator::release_segments() {
  // Queued commands may still name memory that its owner has freed.
  device_.synchronize();
  for (Pool* blocks : {&small_, &large_}) {
    for (auto it = blocks->begin(); it != blocks->end();) {
      Block* block = *it;
      if (block->previous || block->next) {
        ++it;
        continue;
      }
      it = blocks->erase(it);
      segments_.erase(block->mem);
      unused_.erase(block->mem);
      device_.free(block->mem);
      ++stats_.num_device_free;
      count(kSegment, block, -1);
      count(kReservedBytes, block, -static_cast<int64_t>(block->bytes));
      delete block;
    }
  }
}

void Allocator::empty_cache() {
  std::lock_guard<std::mutex> lock(mutex_);
  release_segments();
}

std::vector<uint64_t> Allocator::segments() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<uint64_t> sizes;
  for (const auto& [mem, bytes] : segments_)
    if (!unused_.count(mem)) sizes.push_back(bytes);
  return sizes;
}

void Allocator::reserve(const std::vector<uint64_t>& segments) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (checking_) return;
  for (const uint64_t bytes : segments) {
    Block* block = new_segment(bytes, bytes == kSmallSegment);
    if (!block) return;
    unused_.insert(block->mem);
    untouched_.push_back(block->mem);
    pool(block).insert(block);
  }
}

// What is in the pages stays as it is, so they may be in use. A piece at a time, so that nobody waits for long.
void Allocator::touch() {
  std::vector<lazy_mem> all;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    all.swap(untouched_);
  }
  for (const lazy_mem mem : all) {
    for (uint64_t at = 0;; at += kTouched) {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto found = segments_.find(mem);
      if (found == segments_.end() || at >= found->second) break;
      char* const host = device_.host_pointer(mem);
      if (!host) return;
      const auto page = [](char* p) { return reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(p) & ~(kPage - 1)); };
      char *const first = page(host + at), *const end = page(host + std::min(at + kTouched, found->second));
      if (first < end && madvise(first, static_cast<size_t>(end - first), MADV_POPULATE_WRITE)) return;  // before Linux 5.14
    }
  }
}

void Allocator::set_limit(uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  limit_ = bytes;
}

MemoryStats Allocator::stats() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return stats_;
}

void Allocator::reset_peak_stats() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& pools : stats_.stats) {
    for (Stat& stat : pools) stat.peak = stat.current;
  }
}

void Allocator::reset_accumulated_stats() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& pools : stats_.stats) {
    for (Stat& stat : pools) stat.allocated = stat.freed = 0;
  }
  stats_.num_alloc_retries = stats_.num_ooms = stats_.num_device_alloc = stats_.num_device_free = 0;
}

Allocator& allocator(int index) {
  static std::mutex mutex;
  static auto* allocators = new std::vector<std::unique_ptr<Allocator>>;  // outlives static destructors
  Device& owner = device(index);
  std::lock_guard<std::mutex> lock(mutex);
  if (allocators->size() <= static_cast<size_t>(index)) allocators->resize(static_cast<size_t>(index) + 1);
  auto& slot = (*allocators)[static_cast<size_t>(index)];
  if (!slot) slot = std::make_unique<Allocator>(owner);
  return *slot;
}

}  // namespace lazy
