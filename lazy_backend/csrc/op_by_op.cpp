#include "op_by_op.h"

#include <algorithm>
#include <utility>

namespace lazy {

std::vector<Job> op_by_op(Job job) {
  const Window& whole = *job.window;
  std::vector<Job> parts(whole.nodes.size());
  std::vector<size_t> last(whole.slots.size());               // the op that touches each slot last
  std::vector<std::vector<uint32_t>> slots(whole.nodes.size());  // of the whole window, of each op
  std::vector<uint8_t> had_data = whole.had_data;
  for (size_t i = 0; i < parts.size(); ++i) {
    auto part = std::make_unique<Window>(whole.device, whole.serial);
    part->order(whole.ordered);
    part->add_again(whole, i, [&](Buffer* buffer, uint32_t there) {
      const auto found = std::ranges::find(slots[i], there);
      if (found != slots[i].end()) return static_cast<uint32_t>(found - slots[i].begin());
      slots[i].push_back(there);
      return part->add_slot(buffer, had_data[there]);
    });
    part->place();
    for (const uint32_t there : slots[i]) {
      had_data[there] = true;
      last[there] = i;
    }
    parts[i].window = std::move(part);
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    for (const uint32_t there : slots[i]) parts[i].alive.push_back(job.alive[there] || last[there] > i);
    parts[i].key = parts[i].window->key(parts[i].alive);
  }
  return parts;  // each holds its buffers until it has run
}

}  // namespace lazy
