#include "host_library.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <malloc.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <thread>


namespace lazy {
namespace {

// A library that starts a team of its own and lets it spin after each call takes the cores from the device's own
// threads: a product and a kernel in turns then take 2.6 ms instead of 1.9, and 20 ms where the machine is busy.
// So each call runs on one thread of this pool, and the work is split here.
class Pool {
 public:
  explicit Pool(size_t threads) {
    for (size_t i = 0; i < threads; ++i) std::thread([this] { loop(); }).detach();
  }

  // task(0) .. task(parts - 1), each on a thread of its own; the first exception of any.
  void run(size_t parts, const std::function<void(size_t)>& task) {
    std::lock_guard<std::mutex> one_at_a_time(run_mutex_);
    std::unique_lock<std::mutex> lock(mutex_);
    task_ = &task;
    next_ = 0, parts_ = left_ = parts;
    error_ = nullptr;
    start_.notify_all();
    finished_.wait(lock, [this] { return left_ == 0; });
    task_ = nullptr;
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void loop() {
    single_threaded();
    const at::AutoDispatchBelowADInplaceOrView below;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      start_.wait(lock, [this] { return task_ && next_ < parts_; });
      const auto* task = task_;
      const size_t part = next_++;
      lock.unlock();
      std::exception_ptr error;
      try {
        (*task)(part);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (error && !error_) error_ = error;
      if (--left_ == 0) finished_.notify_one();
    }
  }

  // at::set_num_threads would change every thread; OpenMP's own setting is the calling thread's.
  static void single_threaded() {
    at::get_num_threads();  // torch sets a thread up at its first use
    if (auto* set = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"))) set(1);
    if (auto* set = reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "MKL_Set_Num_Threads_Local"))) set(1);
  }

  std::mutex run_mutex_, mutex_;
  std::condition_variable start_, finished_;
  const std::function<void(size_t)>* task_ = nullptr;
  size_t next_ = 0, parts_ = 0, left_ = 0;
  std::exception_ptr error_;
};

// The library allocates its results; fresh pages cost more than small products do (3.5 us per 4 KiB), so malloc keeps
// what it is given back, up to the largest block that it will keep at all.
void keep_memory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
}

Pool& pool(size_t threads) {
  static Pool* p = (keep_memory(), new Pool(threads));  // its threads outlive static destruction
  return *p;
}

struct Call {
  at::Tensor out;
  std::vector<at::Tensor> in;
  const std::string& attrs;
  size_t threads;

  // The integers of "name": [1, 2] or "name": 3.
  std::vector<int64_t> ints(const std::string& name) const {
    std::vector<int64_t> found;
    size_t at = attrs.find("\"" + name + "\":");
    TORCH_CHECK(at != std::string::npos, "a core op without its attribute ", name);
    const char* text = attrs.c_str() + at + name.size() + 3;
    const bool list = text[text[0] == ' '] == '[';
    while (*text && !std::strchr(list ? "]" : ",}", *text)) {
      char* end;
      const int64_t value = std::strtoll(text, &end, 10);
      if (end == text) ++text;
      else found.push_back(value), text = end;
    }
    return found;
  }
  bool flag(const std::string& name) const { return attrs.find("\"" + name + "\": true") != std::string::npos; }

  // task(first, last) over about equal shares of 0 .. n - 1.
  void split(int64_t n, const std::function<void(int64_t, int64_t)>& task) const {
    const auto parts = std::min<int64_t>(n, static_cast<int64_t>(threads));
    pool(threads).run(static_cast<size_t>(parts), [&](size_t part) {
      const auto i = static_cast<int64_t>(part);
      task(n * i / parts, n * (i + 1) / parts);
    });
  }
};

struct Geometry {
  std::vector<int64_t> stride, padding, dilation, none;
  int64_t groups;
  explicit Geometry(const Call& c)
      : stride(c.ints("stride")), padding(c.ints("padding")), dilation(c.ints("dilation")),
        none(stride.size(), 0), groups(c.ints("groups")[0]) {}
};

// out [N, O, ..] from x [N, C, ..], w [O, C / groups, ..]: by images, by outputs where there are too few.
void forward(const Call& c, const Geometry& g) {
  const auto &x = c.in[0], &w = c.in[1];
  const auto run = [&](at::Tensor out, const at::Tensor& image, const at::Tensor& weight, int64_t groups) {
    auto made = at::convolution(image, weight, {}, g.stride, g.padding, g.dilation, false, g.none, groups);
    for (int64_t d = 2; d < out.dim(); ++d) made = made.slice(d, 0, out.size(d));  // only the first places are wanted
    out.copy_(made);
  };
  if (x.size(0) >= static_cast<int64_t>(c.threads)) {
    c.split(x.size(0), [&](int64_t a, int64_t b) { run(c.out.slice(0, a, b), x.slice(0, a, b), w, g.groups); });
  } else if (g.groups == 1) {
    c.split(w.size(0), [&](int64_t a, int64_t b) { run(c.out.slice(1, a, b), x, w.slice(0, a, b), 1); });
  } else {
    const int64_t outs = w.size(0) / g.groups, ins = w.size(1);
    c.split(g.groups, [&](int64_t a, int64_t b) {
      run(c.out.slice(1, a * outs, b * outs), x.slice(1, a * ins, b * ins), w.slice(0, a * outs, b * outs), b - a);
    });
  }
}

// The gradient of a convolution's input, by images.
void transposed(const Call& c, const Geometry& g) {
  const auto &x = c.in[0], &w = c.in[1];
  c.split(x.size(0), [&](int64_t a, int64_t b) {
    auto out = c.out.slice(0, a, b);
    out.copy_(std::get<0>(at::convolution_backward(x.slice(0, a, b), out, w, c10::nullopt, g.stride, g.padding, g.dilation,
                                                   false, g.none, g.groups, {true, false, false})));
  });
}

// x [C / groups, groups * N, ..] with a "kernel" w [O, N, ..] larger than the result: the gradient of a weight
// [O, C / groups, ..], by its outputs. Stride and dilation are exchanged.
void weight_gradient(const Call& c, const Geometry& g) {
  const auto grad = c.in[1].transpose(0, 1), weight = c.out.transpose(0, 1);
  const int64_t images = grad.size(0), ins = c.in[0].size(0), outs = grad.size(1) / g.groups;
  auto input = c.in[0].unflatten(1, {g.groups, images}).transpose(0, 2).flatten(1, 2);  // [N, (groups, C / groups), ..]
  const auto run = [&](at::Tensor out, const at::Tensor& image, const at::Tensor& gradient, int64_t groups) {
    out.copy_(std::get<1>(at::convolution_backward(gradient, image, out, c10::nullopt, g.dilation, g.padding, g.stride, false,
                                                   g.none, groups, {false, true, false})));
  };
  if (g.groups == 1) {
    c.split(outs, [&](int64_t a, int64_t b) { run(weight.slice(0, a, b), input, grad.slice(1, a, b), 1); });
  } else {
    c.split(g.groups, [&](int64_t a, int64_t b) {
      run(weight.slice(0, a * outs, b * outs), input.slice(1, a * ins, b * ins), grad.slice(1, a * outs, b * outs), b - a);
    });
  }
}

// Whether w is a gradient: larger than the result, and of the size that a convolution with such a weight has.
bool of_weight(const Call& c, const Geometry& g) {
  int64_t kernel = 1, result = 1;
  for (int64_t d = 2; d < c.out.dim(); ++d) {
    const auto i = static_cast<size_t>(d - 2);
    const int64_t reach = c.in[0].size(d) + 2 * g.padding[i] - g.stride[i] * (c.out.size(d) - 1) - 1;
    if (reach < 0 || reach / g.dilation[i] + 1 != c.in[1].size(d)) return false;
    kernel *= c.in[1].size(d), result *= c.out.size(d);
  }
  return kernel > result;
}

void convolution(const Call& c) {
  const Geometry g(c);
  if (c.flag("transposed")) transposed(c, g);
  else if (of_weight(c, g)) weight_gradient(c, g);
  else forward(c, g);
}

const std::map<std::string, void (*)(const Call&)> kOps = {{"convolution", convolution}};

at::Tensor host_tensor(Device& device, const lazy_tensor& t) {
  TORCH_CHECK(t.dtype == LAZY_F32, "the host's library is used for float32");
  std::vector<int64_t> strides(t.strides, t.strides + t.rank);
  int64_t dense = 1;  // oneDNN reads the strides of dims of one element too
  for (size_t d = t.rank; d-- > 0; dense = std::max<int64_t>(1, strides[d] * t.sizes[d]))
    if (t.sizes[d] == 1) strides[d] = dense;
  char* data = device.host_pointer(t.mem) + t.offset;
  return at::from_blob(data, {t.sizes, t.rank}, strides, at::TensorOptions().dtype(at::kFloat));
}

}  // namespace

std::vector<std::string> extern_ops(Device& device, const std::vector<std::string>& names) {
  std::vector<std::string> offered;
  const auto& props = device.props;
  for (const auto& name : names) {
    const bool driver = props.level >= 3 && device.core_op(name.c_str(), 0, 0, nullptr, "{}");
    const bool library = props.level >= 3 && props.is_cpu && props.host_visible && kOps.count(name);
    if (driver || library) offered.push_back(name);
  }
  return offered;
}

void run_library_op(Device& device, const std::string& name, const std::vector<lazy_tensor>& tensors,
                    const std::string& attrs) {
  std::vector<at::Tensor> views;
  for (const auto& t : tensors) views.push_back(host_tensor(device, t));
  const size_t threads = std::max(1u, device.props.compute_units);
  const auto op = kOps.find(name);
  TORCH_CHECK(op != kOps.end(), "the driver does not offer the core op ", name);
  std::string what = name + " " + attrs;
  for (const auto& t : views) what += " " + c10::str(t.sizes(), t.strides());
  try {
    op->second(Call{views[0], {views.begin() + 1, views.end()}, attrs, threads});
  } catch (const std::exception& error) {
    TORCH_CHECK(false, "the host's library failed at ", what, ": ", error.what());
  }
}

}  // namespace lazy
