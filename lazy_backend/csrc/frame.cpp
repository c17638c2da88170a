// The user's Python line of a node. Costs two pointer reads a frame: file names are looked at once per code object.
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <cstring>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "window.h"

namespace lazy {
namespace {

// A frame deeper than this below the user's code is not searched for; torch's own call depth stays under it.
constexpr int kMaxDepth = 24;

bool library_code(PyCodeObject* code) {
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  if (!file) {
    PyErr_Clear();
    return true;
  }
  static const char* const marks[] = {"/torch/", "/lazy_backend/", "/ops_core/", "/codegen/", "<frozen", "<__array_function__"};
  for (const char* mark : marks)
    if (std::strstr(file, mark)) return std::strstr(file, "/tests/") == nullptr;
  return false;
}

// Guarded by the GIL. Code objects are kept alive for good: there are as many as the program has functions.
std::unordered_map<PyCodeObject*, bool>& known_code() {
  static auto* map = new std::unordered_map<PyCodeObject*, bool>;
  return *map;
}

const char* intern_name(const std::string& name) {
  static std::mutex mutex;
  static auto* names = new std::unordered_set<std::string>;
  std::lock_guard<std::mutex> lock(mutex);
  return names->insert(name).first->c_str();
}

}  // namespace

Frame current_frame() {
  Frame result;
  if (PyGILState_Check()) {
    auto& known = known_code();
    PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
    for (int depth = 0; frame && depth < kMaxDepth; ++depth) {
      PyCodeObject* code = PyFrame_GetCode(frame);
      auto found = known.find(code);
      if (found == known.end()) {
        Py_INCREF(code);
        found = known.emplace(code, library_code(code)).first;
      }
      if (!found->second) {
        result.code = code;
        result.lasti = PyFrame_GetLasti(frame);
      }
      Py_DECREF(code);
      PyFrameObject* back = result.code ? nullptr : PyFrame_GetBack(frame);
      Py_DECREF(frame);
      frame = back;
    }
    Py_XDECREF(frame);
    if (result.code) return result;
  }
  if (auto node = torch::autograd::get_current_node()) {
    thread_local std::unordered_map<const void*, const char*> names;
    const void* type = *reinterpret_cast<void* const*>(node.get());  // its vtable: one per kind of node
    auto& name = names[type];
    if (!name) name = intern_name(node->name());
    result.autograd = name;
  }
  return result;
}

std::string describe(const Frame& frame) {
  if (!frame.code) return frame.autograd ? std::string("backward of ") + frame.autograd : std::string("unknown line");
  const PyGILState_STATE gil = PyGILState_Ensure();
  const char* file = PyUnicode_AsUTF8(frame.code->co_filename);
  const char* function = PyUnicode_AsUTF8(frame.code->co_name);
  std::string text = std::string(file ? file : "?") + ":" +
                     std::to_string(PyCode_Addr2Line(frame.code, frame.lasti)) + " in " + (function ? function : "?");
  PyErr_Clear();
  PyGILState_Release(gil);
  return text;
}

}  // namespace lazy
