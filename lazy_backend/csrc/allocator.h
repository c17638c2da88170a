// The caching device allocator: best fit with splitting and merging inside segments
// that are taken from the driver and kept. Kept memory matters: a fresh page costs 3.5 us
// on a CPU device, and an allocation stalls the queue on a GPU.
//
// A freed block may be handed out again at once: the device's one in-order queue
// runs the old owner's commands before the new owner's.
// Thread-safe. Takes no GIL (and, as for Device, must be called without it).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "driver.h"

namespace lazy {

struct Buffer;

// A piece of device memory. `host` is its address for the host, null where memory is not host visible.
struct Block {
  lazy_mem mem = nullptr;
  uint64_t offset = 0;  // bytes, from the start of `mem`
  uint64_t bytes = 0;   // usable, at least what was asked for
  char* host = nullptr;

 private:
  friend class Allocator;
  Block* previous = nullptr;  // neighbours in the segment, by address
  Block* next = nullptr;
  Block* newer = nullptr;     // in the list of live blocks
  Block* older = nullptr;
  const Buffer* owner = nullptr;
  uint64_t requested = 0;
  bool small = false;
  bool free = true;
};

// As torch.cuda.memory_stats counts.
struct Stat {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  void add(int64_t amount);
  void subtract(int64_t amount);
};
enum StatKind { kAllocation, kSegment, kInactiveSplit, kAllocatedBytes, kReservedBytes, kInactiveSplitBytes,
                kRequestedBytes, kStatKinds };
enum StatPool { kAll, kSmallPool, kLargePool, kStatPools };
struct MemoryStats {
  std::array<std::array<Stat, kStatPools>, kStatKinds> stats{};
  int64_t num_alloc_retries = 0, num_ooms = 0, num_device_alloc = 0, num_device_free = 0;
  // "allocated_bytes.all.peak" and so on, with the names of torch.cuda.memory_stats.
  std::vector<std::pair<std::string, int64_t>> flatten() const;
};

class Allocator {
 public:
  explicit Allocator(Device& device);

  // Owned by the allocator until free(). Throws DriverError: LAZY_OUT_OF_MEMORY after cached
  // segments were given back and the driver still refused.
  Block* allocate(uint64_t bytes, const Buffer* owner = nullptr);
  void free(Block* block);
  // Calls `visit(owner, bytes)` for every live block, under the lock: owners are alive, nothing may be allocated.
  void each_live(const std::function<void(const Buffer*, uint64_t)>& visit) const;

  void empty_cache();                // gives every wholly free segment back to the driver
  std::vector<uint64_t> segments() const;               // bytes of those that something has used
  void reserve(const std::vector<uint64_t>& segments);  // takes such ones, as long as the driver has them
  void touch();                      // has the system put pages under what was reserved so, where it is the host's memory
  void set_limit(uint64_t bytes);    // reserved memory stays under it; 0: only the driver limits
  MemoryStats stats() const;
  void reset_peak_stats();
  void reset_accumulated_stats();

 private:
  struct BySize {
    bool operator()(const Block* a, const Block* b) const;
  };
  using Pool = std::set<Block*, BySize>;

  Pool& pool(const Block* block) { return block->small ? small_ : large_; }
  Block* take_cached(uint64_t bytes, bool small);
  Block* take_segment(uint64_t bytes, bool small);
  Block* new_segment(uint64_t bytes, bool small);
  lazy_mem try_alloc(uint64_t bytes);
  void split(Block* block, uint64_t bytes);
  void merge(Block* block, Block* neighbour);
  void release_segments();
  void count(StatKind kind, const Block* block, int64_t amount);
  void count_inactive(const Block* block, int sign);

  Device& device_;
  const uint64_t alignment_;
  const bool checking_;
  mutable std::mutex mutex_;
  Pool small_, large_;  // free blocks
  std::map<lazy_mem, uint64_t> segments_;  // their bytes
  std::set<lazy_mem> unused_;              // those that were reserved, until something uses them
  std::vector<lazy_mem> untouched_;        // until they are touched
  Block* newest_ = nullptr;  // live blocks
  uint64_t limit_ = 0;
  MemoryStats stats_;
};

Allocator& allocator(int index);  // of device(index)

}  // namespace lazy
