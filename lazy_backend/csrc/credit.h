// Which new windows are compiled. The plan of a window is worth its making when the window comes again, and some scripts
// have ever new ones of the same calls in another order: a coin is tossed at each step of a loop, a tree is walked. So these
// are compiled on credit, of so many ops, which windows give back that come again. When it is used up, such a window runs
// op by op: an op's plan does come again.
#pragma once

#include <unordered_map>
#include <unordered_set>

#include "window.h"

namespace lazy {

class Credit {
 public:
  void known(const Window& window, uint64_t paid);  // it had a plan, which runs for the second time, if so much was paid for it
  uint64_t made(const Window& window);              // a plan was made for it: what that took
  bool pays(const Window& window) const { return left_ >= price(window); }  // for it to be compiled, if it has no plan
  bool runs_op_by_op(const Hash& key, const Window& window);  // it has no plan, and is not to have one

 private:
  struct Rare {
    uint32_t runs = 0, soon = 0;  // how often it ran; how often on end it was back soon
    uint64_t last = 0;            // `ops_` then
  };
  uint64_t price(const Window& window) const;
  bool grows(const Window& window);
  void meet(const Window& window);

  uint64_t left_ = kMost;         // in 1/128 of an op
  uint64_t ops_ = 0;              // of all windows so far
  bool last_known_ = false;       // the last window had a plan
  std::unordered_map<Hash, Rare, HashHash> rare_;
  std::unordered_set<uint64_t> calls_;  // of new windows so far
  struct Lists {
    uint64_t last = 0;     // a hash of their lengths
    uint32_t changes = 0;  // how many lengths on end
  };
  std::unordered_map<Hash, Lists, HashHash> lists_;  // of new windows, by their calls and lines

  static constexpr uint64_t kMost = 1 << 20;
};

// While it is on (calls nest), every window is compiled: what is run once is looked at, or kept. Where it is off more often than
// on, as tests have it, none is that has no plan.
void compile_all(bool on);

}  // namespace lazy
