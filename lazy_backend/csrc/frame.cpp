// The user's Python line of a node. torch releases the GIL around an op, so the thread's own frames are read
// as they stand in the interpreter: nothing else changes them. A code object is looked at once, with the GIL.
#define Py_BUILD_CORE
#include <Python.h>
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "frame.h"

namespace lazy {
namespace {

// A frame deeper than this below the user's code is not searched for; torch's own call depth stays under it.
constexpr int kMaxDepth = 24;

// The folders of torch and of this package, and the names of code that they generate.
std::vector<std::string>& library_prefixes() {
  static auto* prefixes = new std::vector<std::string>{"<frozen", "<__array_function__", "<eval_with_key>"};
  return *prefixes;
}

bool library_code(PyCodeObject* code) {
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  if (!file) {
    PyErr_Clear();
    return true;
  }
  const std::string_view name = file;
  return std::any_of(library_prefixes().begin(), library_prefixes().end(),
                     [&](const std::string& prefix) { return name.starts_with(prefix); });
}

// Whether a code object is a library's. Kept alive for good: there are as many as the program has functions.
bool is_library(PyCodeObject* code) {
  thread_local std::unordered_map<PyCodeObject*, bool> known;
  if (auto found = known.find(code); found != known.end()) return found->second;
  const PyGILState_STATE gil = PyGILState_Ensure();
  Py_INCREF(code);
  const bool library = library_code(code);
  PyGILState_Release(gil);
  return known[code] = library;
}

_PyInterpreterFrame* innermost(PyThreadState* thread) {
#if PY_VERSION_HEX >= 0x030D0000
  return thread->current_frame;
#else
  return thread->cframe->current_frame;
#endif
}

PyCodeObject* code_of(_PyInterpreterFrame* frame) {
#if PY_VERSION_HEX >= 0x030D0000
  return PyCode_Check(frame->f_executable) ? reinterpret_cast<PyCodeObject*>(frame->f_executable) : nullptr;
#else
  return frame->f_code;
#endif
}

const char* intern_name(const std::string& name) {
  static std::mutex mutex;
  static auto* names = new std::unordered_set<std::string>;
  std::lock_guard<std::mutex> lock(mutex);
  return names->insert(name).first->c_str();
}

}  // namespace

void add_library_folders(const std::vector<std::string>& folders) {
  library_prefixes().insert(library_prefixes().end(), folders.begin(), folders.end());
}

Frame current_frame() {
  Frame result;
  if (PyThreadState* thread = PyGILState_GetThisThreadState()) {
    int depth = 0;
    for (auto* frame = innermost(thread); frame && depth < kMaxDepth; frame = frame->previous, ++depth) {
      PyCodeObject* code = code_of(frame);
      if (!code || _PyFrame_IsIncomplete(frame) || is_library(code)) continue;
      result.code = code;
      result.lasti = _PyInterpreterFrame_LASTI(frame) * static_cast<int>(sizeof(_Py_CODEUNIT));
      return result;
    }
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
