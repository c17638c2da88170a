#include "generator.h"

#include <ATen/Utils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/CallOnce.h>

#include <cstring>
#include <deque>
#include <mutex>
#include <optional>

#include "window.h"

namespace lazy {

namespace {
constexpr int64_t kStateBytes = 2 * sizeof(uint64_t);
}

PhiloxGenerator::PhiloxGenerator(c10::DeviceIndex device)
    : c10::GeneratorImpl({c10::DeviceType::PrivateUse1, device}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

void PhiloxGenerator::set_current_seed(uint64_t seed) {
  std::lock_guard lock(state_->mutex);
  state_->seed = seed;
  state_->offset = 0;
}

uint64_t PhiloxGenerator::current_seed() const {
  std::lock_guard lock(state_->mutex);
  return state_->seed;
}

uint64_t PhiloxGenerator::seed() {
  const uint64_t seed = c10::detail::getNonDeterministicRandom();
  set_current_seed(seed);
  return seed;
}

void PhiloxGenerator::set_offset(uint64_t offset) {
  std::lock_guard lock(state_->mutex);
  state_->offset = offset;
}

uint64_t PhiloxGenerator::get_offset() const {
  std::lock_guard lock(state_->mutex);
  return state_->offset;
}

void PhiloxGenerator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(state.numel() == kStateBytes, "a lazy generator's state has ", kStateBytes, " bytes, this one has ",
              state.numel());
  uint64_t words[2];
  std::memcpy(words, state.data(), kStateBytes);
  std::lock_guard lock(state_->mutex);
  state_->seed = words[0];
  state_->offset = words[1];
}

c10::intrusive_ptr<c10::TensorImpl> PhiloxGenerator::get_state() const {
  at::Tensor state = at::empty({kStateBytes}, at::TensorOptions(at::kByte).device(at::kCPU));
  std::lock_guard lock(state_->mutex);
  const uint64_t words[2] = {state_->seed, state_->offset};
  std::memcpy(state.mutable_data_ptr(), words, kStateBytes);
  return state.getIntrusivePtr();
}

void PhiloxGenerator::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) {
  auto* other = dynamic_cast<PhiloxGenerator*>(state.get());
  TORCH_CHECK(other != nullptr, "graphsafe_set_state: not a generator of a lazy device");
  state_ = other->state_;
}

c10::intrusive_ptr<c10::GeneratorImpl> PhiloxGenerator::graphsafe_get_state() const {
  auto handle = c10::make_intrusive<PhiloxGenerator>(device_.index());
  handle->state_ = state_;
  return handle;
}

std::pair<uint64_t, uint64_t> PhiloxGenerator::reserve(uint64_t counters) {
  std::lock_guard lock(state_->mutex);
  const uint64_t first = state_->offset;
  state_->offset += counters;
  return {state_->seed, first};
}

PhiloxGenerator* PhiloxGenerator::clone_impl() const {
  auto* copy = new PhiloxGenerator(device_.index());
  std::lock_guard lock(state_->mutex);
  copy->state_->seed = state_->seed;
  copy->state_->offset = state_->offset;
  return copy;
}

namespace {

// The devices' default generators, as far as they were asked for, and the seed of those that will be.
struct Defaults {
  std::mutex mutex;
  std::deque<at::Generator> generators;  // grows without moving
  std::optional<uint64_t> seed;
};

Defaults& defaults() {
  static auto* all = new Defaults;  // outlives every static
  return *all;
}

}  // namespace

const at::Generator& default_generator(c10::DeviceIndex device) {
  auto& [mutex, generators, seed] = defaults();
  std::lock_guard lock(mutex);
  while (generators.size() <= static_cast<size_t>(device)) {
    generators.push_back(at::make_generator<PhiloxGenerator>(static_cast<c10::DeviceIndex>(generators.size())));
    if (seed) {
      generators.back().set_current_seed(*seed);
    }
  }
  return generators[device];
}

void seed_all(uint64_t seed) {
  auto& all = defaults();
  std::lock_guard lock(all.mutex);
  all.seed = seed;
  for (at::Generator& generator : all.generators) {
    generator.set_current_seed(seed);
  }
}

std::pair<uint64_t, uint64_t> philox_reserve(const at::Generator* generator, int device, uint64_t counters) {
  const at::Generator& chosen =
      generator != nullptr ? *generator : default_generator(static_cast<c10::DeviceIndex>(device));
  TORCH_CHECK(chosen.device().type() == c10::DeviceType::PrivateUse1, "expected a generator of device lazy, got one of ",
              chosen.device());
  TORCH_CHECK(generator == nullptr || !capturing(device) || *generator == default_generator(static_cast<c10::DeviceIndex>(device)),
              "while a graph is captured only the device's default generator can be drawn from: a replay would not advance another");
  return chosen.get<PhiloxGenerator>()->reserve(counters);
}

}  // namespace lazy
