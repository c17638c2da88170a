// The device's random number generator: Philox4x32-10, counter based. A generator is a seed and an offset (in counters
// of four 32-bit words); a random op reserves counters when it is recorded, so numbers depend on the seed and the order
// of calls, never on windows or threads.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

namespace lazy {

class PhiloxGenerator final : public c10::GeneratorImpl {
 public:
  explicit PhiloxGenerator(c10::DeviceIndex device);

  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override;
  uint64_t seed() override;  // takes a non-deterministic seed
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;

  // State as a CPU uint8 tensor of 16 bytes: seed, offset (both little-endian u64).
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  // Handles of one shared state, instead of copies of it.
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) override;
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;

  std::pair<uint64_t, uint64_t> reserve(uint64_t counters);

 private:
  struct State {
    std::mutex mutex;
    uint64_t seed = c10::default_rng_seed_val;
    uint64_t offset = 0;
  };

  PhiloxGenerator* clone_impl() const override;

  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// The device's default generator; the reference lives as long as the process.
const at::Generator& default_generator(c10::DeviceIndex device);

// Seeds the default generators of all devices, those too that no driver has shown yet.
void seed_all(uint64_t seed);

// Takes `counters` counters from `generator` (null: the device's default one). Returns (seed, first counter).
std::pair<uint64_t, uint64_t> philox_reserve(const at::Generator* generator, int device, uint64_t counters);

}  // namespace lazy
