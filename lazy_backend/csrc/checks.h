// Checks of indices: the kernels of a window write one word for each, the host looks at them when it next waits.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "driver.h"
#include "window.h"

namespace lazy {

// What a word that is not kNothing means: codegen/functionalize.py, Check.
struct Check {
  uint32_t node;       // of the window
  bool index_error;    // else a RuntimeError
  std::shared_ptr<const std::string> text;  // with {index}, {size} and {line}
  int64_t size;        // of what is indexed
};

// The words of a device, handed out run by run until somebody looks. Used by whoever runs its jobs.
class Checks {
 public:
  // Words for one run of a plan over `window`: their memory, and the first byte. Where there is no room, look() first.
  std::pair<lazy_mem, uint64_t> take(Device& device, const std::vector<Check>& checks,
                                     const Window& window);
  bool room(size_t count) const { return used_ + count <= capacity_; }
  // The first error that the words tell, or null; all words are free again. The device must be idle.
  std::exception_ptr look(Device& device);

 private:
  struct Pending {
    Check check;
    Frame frame;
    size_t word;
  };
  std::vector<Pending> pending_;
  size_t used_ = 0;  // words: a run's begin where a buffer argument may
  lazy_mem words_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace lazy
