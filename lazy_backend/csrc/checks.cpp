#include "checks.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

namespace lazy {
namespace {

// The word of a check that found nothing: codegen/functionalize.py, NOTHING.
constexpr int64_t kNothing = INT64_MIN;
// Words between two looks: a script that never reads is waited for once in this many checks, and once in 256 windows
// where memory is aligned to 512 bytes, as on NVIDIA's GPUs.
constexpr size_t kWords = 16384;

std::exception_ptr error_of(const Check& check, int64_t index, const std::string& line) {
  std::string text = *check.text;
  // The line last: it may hold anything.
  const std::pair<std::string, std::string> fillings[] = {
      {"{index}", std::to_string(index)}, {"{size}", std::to_string(check.size)}, {"{line}", line}};
  for (const auto& [hole, filling] : fillings)
    if (const auto at = text.find(hole); at != std::string::npos) text.replace(at, hole.size(), filling);
  const c10::SourceLocation here{__func__, __FILE__, __LINE__};
  if (check.index_error) return std::make_exception_ptr(c10::IndexError(here, text));
  return std::make_exception_ptr(c10::Error(here, text));
}

}  // namespace

std::pair<lazy_mem, uint64_t> Checks::take(Device& device, const std::vector<Check>& checks,
                                           const Window& window) {
  if (const size_t wanted = std::max(kWords, checks.size()); wanted > capacity_) {
    if (words_) device.free(words_);
    capacity_ = 0;
    words_ = device.alloc(wanted * sizeof(int64_t));
    capacity_ = wanted;
  }
  const uint64_t first = used_ * sizeof(int64_t);
  for (const auto& check : checks)
    pending_.push_back({check, window.nodes[check.node].frame, used_++});
  const size_t step = std::max<size_t>(1, device.props.mem_alignment / sizeof(int64_t));
  used_ = (used_ + step - 1) / step * step;  // where the next run's may begin
  return {words_, first};
}

std::exception_ptr Checks::look(Device& device) {
  if (pending_.empty()) return nullptr;
  std::vector<int64_t> words(pending_.back().word + 1);
  if (const char* host = device.host_pointer(words_))
    std::memcpy(words.data(), host, words.size() * sizeof(int64_t));
  else
    device.copy_d2h(words.data(), words_, 0, words.size() * sizeof(int64_t), /*blocking=*/true);
  const std::vector<Pending> pending = std::move(pending_);
  pending_.clear();
  used_ = 0;
  for (const auto& [check, frame, word] : pending)
    if (C10_UNLIKELY(words[word] != kNothing)) return error_of(check, words[word], describe(frame));
  return nullptr;
}

}  // namespace lazy
