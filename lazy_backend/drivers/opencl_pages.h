// Huge pages under memory that the host touches, for as long as the system has them at once.
#pragma once

#include <sys/mman.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>

namespace lazy::opencl {

// Huge pages make faults 512 times fewer, and steady steps 1 to 4 % faster. Where free memory is the host's, as under
// Firecracker, one takes 5 ms to get and not 0.2, small ones 0.6 for as much: gpt_train's first step 2.1 or 1.75 s.
constexpr uint64_t kHugePage = 2ull << 20;
constexpr auto kDear = std::chrono::milliseconds(1);
// After so long they are worth having at any price: the system finds them beside the script, some MB a second.
constexpr auto kLater = std::chrono::seconds(10);

// Any thread.
class HugePages {
 public:
  // Asks for huge pages, as long as the first one of each allocation is there at once.
  void ask(char* pointer, uint64_t bytes) {
    const Part part(pointer, bytes);
    if (part.none()) return;
    std::lock_guard<std::mutex> lock(mutex_);
    if (!dear_) {
      part.advise(MADV_HUGEPAGE);
      const auto begin = Clock::now();
      *reinterpret_cast<volatile char*>(part.start) = 0;
      dear_ = Clock::now() - begin > kDear;
      if (!dear_) return;
    }
    part.advise(MADV_NOHUGEPAGE);
    small_[pointer] = {bytes, Clock::now()};
  }

  // Leaves it to the system to put huge pages under what has been touched by now.
  void ask_again() {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto old = Clock::now() - kLater;
    for (auto it = small_.begin(); it != small_.end();) {
      if (it->second.since > old) {
        ++it;
        continue;
      }
      Part(it->first, it->second.bytes).advise(MADV_HUGEPAGE);
      it = small_.erase(it);
    }
  }

  // The memory is about to be freed.
  void forget(char* pointer) {
    std::lock_guard<std::mutex> lock(mutex_);
    small_.erase(pointer);
  }

 private:
  using Clock = std::chrono::steady_clock;

  // The part of an allocation that huge pages can have.
  struct Part {
    Part(char* pointer, uint64_t bytes)
        : start((reinterpret_cast<uintptr_t>(pointer) + kHugePage - 1) & ~(kHugePage - 1)),
          end((reinterpret_cast<uintptr_t>(pointer) + bytes) & ~(kHugePage - 1)) {}
    bool none() const { return start >= end; }
    void advise(int how) const { madvise(reinterpret_cast<void*>(start), end - start, how); }
    uintptr_t start, end;
  };
  struct Small {
    uint64_t bytes;
    Clock::time_point since;
  };

  std::mutex mutex_;
  bool dear_ = false;                // a huge page took long to get
  std::map<char*, Small> small_;     // memory that has none for that reason
};

}  // namespace lazy::opencl
