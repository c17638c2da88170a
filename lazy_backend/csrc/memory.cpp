// Host memory that copies may use asynchronously, and the device allocator's statistics in torch's terms.
#include <ATen/core/CachingHostAllocator.h>

#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "allocator.h"
#include "hooks.h"
#include "runtime.h"
#include "stream.h"

namespace lazy {

namespace {

// Freed pinned blocks are kept by size: a data loader asks for the same sizes for ever.
class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const size_t size = std::max<size_t>(kPage, (bytes + kPage - 1) / kPage * kPage);
    std::lock_guard lock(mutex_);
    std::vector<void*>& kept = free_[size];
    void* block = nullptr;
    if (kept.empty()) {
      TORCH_CHECK_WITH(OutOfMemoryError, posix_memalign(&block, kPage, size) == 0, "no host memory for ", bytes,
                       " bytes of pinned memory");
      owned_[reinterpret_cast<uintptr_t>(block)] = size;
      stats_.allocated_bytes.increase(size);
      stats_.allocations.increase(1);
    } else {
      block = kept.back();
      kept.pop_back();
    }
    stats_.active_bytes.increase(size);
    stats_.active_requests.increase(1);
    return {block, block, &PinnedAllocator::release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &PinnedAllocator::release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  // A copy holds its host tensor until it has run; there is nothing to remember per stream.
  bool record_event(void*, void*, c10::Stream) override { return true; }

  void empty_cache() override {
    std::lock_guard lock(mutex_);
    for (const auto& [size, blocks] : free_) {
      for (void* block : blocks) {
        owned_.erase(reinterpret_cast<uintptr_t>(block));
        std::free(block);
        stats_.allocated_bytes.decrease(size);
        stats_.allocations.decrease(1);
      }
    }
    free_.clear();
  }

  at::HostStats get_stats() override {
    std::lock_guard lock(mutex_);
    return stats_;
  }
  void reset_accumulated_stats() override {
    std::lock_guard lock(mutex_);
    for (c10::CachingAllocator::Stat* stat : all_stats()) stat->reset_accumulated();
  }
  void reset_peak_stats() override {
    std::lock_guard lock(mutex_);
    for (c10::CachingAllocator::Stat* stat : all_stats()) stat->reset_peak();
  }

  bool owns(const void* pointer) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    std::lock_guard lock(mutex_);
    const auto after = owned_.upper_bound(address);
    return after != owned_.begin() && address < std::prev(after)->first + std::prev(after)->second;
  }

  static PinnedAllocator& instance() {
    static auto* allocator = new PinnedAllocator;  // outlives every tensor
    return *allocator;
  }

 private:
  static constexpr size_t kPage = 4096;

  static void release(void* block) {
    PinnedAllocator& self = instance();
    std::lock_guard lock(self.mutex_);
    const size_t size = self.owned_.at(reinterpret_cast<uintptr_t>(block));
    self.free_[size].push_back(block);
    self.stats_.active_bytes.decrease(size);
    self.stats_.active_requests.decrease(1);
  }

  std::array<c10::CachingAllocator::Stat*, 4> all_stats() {
    return {&stats_.allocations, &stats_.allocated_bytes, &stats_.active_requests, &stats_.active_bytes};
  }

  std::mutex mutex_;
  std::map<uintptr_t, size_t> owned_;
  std::map<size_t, std::vector<void*>> free_;
  at::HostStats stats_;
};

void assign(c10::CachingAllocator::StatArray& to, const MemoryStats& from, StatKind kind) {
  for (size_t pool = 0; pool < kStatPools; ++pool) {  // the same order: aggregate, small, large
    const Stat& stat = from.stats[kind][pool];
    to[pool].current = stat.current;
    to[pool].peak = stat.peak;
    to[pool].allocated = stat.allocated;
    to[pool].freed = stat.freed;
  }
}

}  // namespace

bool is_pinned(const void* pointer) { return PinnedAllocator::instance().owns(pointer); }
at::HostAllocator* pinned_allocator() { return &PinnedAllocator::instance(); }

bool DeviceMemory::initialized() { return device_count() > 0; }

void DeviceMemory::emptyCache(c10::MempoolId_t) {
  for (int index = 0; index < device_count(); ++index) {
    synchronize(index);
    allocator(index).empty_cache();
  }
}

// One queue runs in order, so memory freed by one stream cannot be reused before another stream's earlier work.
void DeviceMemory::recordStream(const c10::DataPtr&, c10::Stream) {}

c10::CachingDeviceAllocator::DeviceStats DeviceMemory::getDeviceStats(c10::DeviceIndex index) {
  synchronize(resolve_device(index));
  const MemoryStats from = allocator(index).stats();
  c10::CachingDeviceAllocator::DeviceStats stats;
  assign(stats.allocation, from, kAllocation);
  assign(stats.active, from, kAllocation);
  assign(stats.segment, from, kSegment);
  assign(stats.inactive_split, from, kInactiveSplit);
  assign(stats.allocated_bytes, from, kAllocatedBytes);
  assign(stats.active_bytes, from, kAllocatedBytes);
  assign(stats.reserved_bytes, from, kReservedBytes);
  assign(stats.inactive_split_bytes, from, kInactiveSplitBytes);
  assign(stats.requested_bytes, from, kRequestedBytes);
  stats.num_alloc_retries = from.num_alloc_retries;
  stats.num_ooms = from.num_ooms;
  stats.num_device_alloc = from.num_device_alloc;
  stats.num_device_free = from.num_device_free;
  return stats;
}

void DeviceMemory::resetAccumulatedStats(c10::DeviceIndex index) {
  synchronize(resolve_device(index));
  allocator(index).reset_accumulated_stats();
}

void DeviceMemory::resetPeakStats(c10::DeviceIndex index) {
  synchronize(resolve_device(index));
  allocator(index).reset_peak_stats();
}

// (free, total) bytes; memory that the allocator keeps counts as free.
std::pair<size_t, size_t> DeviceMemory::getMemoryInfo(c10::DeviceIndex index) {
  synchronize(resolve_device(index));
  const size_t total = device(index).props.global_memory_bytes;
  const size_t used = allocator(index).stats().stats[kAllocatedBytes][kAll].current;
  return {total > used ? total - used : 0, total};
}

}  // namespace lazy
