// Where in the user's program something was recorded.
#pragma once

#include <Python.h>

#include <string>
#include <vector>

namespace lazy {

// The user's Python line, or the autograd node that ran it.
struct Frame {
  PyCodeObject* code = nullptr;  // interned, kept alive
  int lasti = 0;
  const char* autograd = nullptr;  // interned name of the autograd node
};
// Lines of code under these folders are no user's. Called before the first op.
void add_library_folders(const std::vector<std::string>& folders);
Frame current_frame();                    // of the calling thread; may take the GIL: call it without a lock
std::string describe(const Frame& frame);  // "file.py:12 in forward"; takes the GIL

}  // namespace lazy
