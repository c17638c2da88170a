#include "host_library.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "placed.h"

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

  // All tasks, a thread each as far as there are threads. They throw nothing.
  void run(const std::vector<std::function<void()>>& tasks) {
    std::lock_guard<std::mutex> one_at_a_time(run_mutex_);
    std::unique_lock<std::mutex> lock(mutex_);
    tasks_ = &tasks;
    next_ = 0, left_ = tasks.size();
    start_.notify_all();
    finished_.wait(lock, [this] { return left_ == 0; });
    tasks_ = nullptr;
  }

 private:
  void loop() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      start_.wait(lock, [this] { return tasks_ && next_ < tasks_->size(); });
      const auto& task = (*tasks_)[next_++];
      lock.unlock();
      task();
      lock.lock();
      if (--left_ == 0) finished_.notify_one();
    }
  }

  std::mutex run_mutex_, mutex_;
  std::condition_variable start_, finished_;
  const std::vector<std::function<void()>>* tasks_ = nullptr;
  size_t next_ = 0, left_ = 0;
};

// One thread of the library's, for a while. at::set_num_threads would change every thread; the settings of OpenMP and MKL are
// the calling thread's own.
class Alone {
 public:
  Alone() : threads_(at::get_num_threads()) {  // which sets a thread up at its first use
    if (openmp()) openmp()(1);
    if (mkl()) before_ = mkl()(1);
  }
  ~Alone() {
    if (openmp()) openmp()(threads_);
    if (mkl()) mkl()(before_);
  }
  Alone(const Alone&) = delete;

 private:
  using OpenMP = void (*)(int);
  using Mkl = int (*)(int);
  static OpenMP openmp() {
    static const auto set = reinterpret_cast<OpenMP>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
    return set;
  }
  static Mkl mkl() {
    static const auto set = reinterpret_cast<Mkl>(dlsym(RTLD_DEFAULT, "MKL_Set_Num_Threads_Local"));
    return set;
  }
  const int threads_;
  int before_ = 0;
  const at::AutoDispatchBelowADInplaceOrView below_;
  const Placing placing_;
};

// The library allocates its results; fresh pages cost more than small products do (3.5 us per 4 KiB), so malloc keeps
// what it is given back, up to the largest block that it will keep at all.
void keep_memory() {
  static const bool once = mallopt(M_MMAP_THRESHOLD, 32 << 20) && mallopt(M_TRIM_THRESHOLD, 512 << 20);
  (void)once;
}

Pool& pool(size_t threads) {
  static Pool* p = new Pool(threads);  // its threads outlive static destruction
  return *p;
}

using Tasks = std::vector<std::function<void()>>;

// Side by side: on the device's own threads where it lends them, else on others.
void run(Device& device, Tasks& tasks, size_t threads) {
  std::vector<void*> items;
  for (auto& task : tasks) items.push_back(&task);
  keep_memory();
  if (!device.run_tasks([](void* task) { (*static_cast<std::function<void()>*>(task))(); }, items)) pool(threads).run(tasks);
}

struct HostCall {
  at::Tensor out;
  std::vector<at::Tensor> in;
  const std::string& attrs;
  size_t parts;  // into which it is to be split
  Tasks* last;   // what is left to do after all parts

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

  // task(first, last) over about equal shares of 0 .. n - 1: `parts` of them, or `more`.
  Tasks split(int64_t n, const std::function<void(int64_t, int64_t)>& task, int64_t more = 0) const {
    const auto shares = std::min<int64_t>(n, std::max<int64_t>(static_cast<int64_t>(parts), more));
    Tasks tasks;
    for (int64_t i = 0; i < shares; ++i)
      tasks.push_back([=] { task(n * i / shares, n * (i + 1) / shares); });
    return tasks;
  }
};

struct Geometry {
  std::vector<int64_t> stride, padding, dilation, none;
  int64_t groups;
  explicit Geometry(const HostCall& c)
      : stride(c.ints("stride")), padding(c.ints("padding")), dilation(c.ints("dilation")),
        none(stride.size(), 0), groups(c.ints("groups")[0]) {}
};

// Whether to split by the channels of the weight: each part brings the whole other operand into the library's layout.
// A part of a single small volume would not go to oneDNN at all (use_mkldnn in ATen/native/Convolution.cpp): 16 x 16 x 28 x
// 28 takes 11.5 ms then, two of them 4.3.
bool by_channels(const HostCall& c, const Geometry& g) {
  const auto fewest = static_cast<int64_t>(c.parts) * (c.in[0].dim() == 5 ? 2 : 1);
  return g.groups == 1 && (c.in[1].numel() > c.in[0].numel() || c.in[0].size(0) < fewest);
}

// out [N, O, ..] from x [N, C, ..], w [O, C / groups, ..]: by images or by outputs.
Tasks forward(const HostCall& c, const Geometry& g) {
  const auto out = c.out, x = c.in[0], w = c.in[1];
  const auto run = [g](const at::Tensor& to, const at::Tensor& image, const at::Tensor& weight, int64_t groups) {
    place(to, [&] {
      auto made = at::convolution(image, weight, {}, g.stride, g.padding, g.dilation, false, g.none, groups);
      for (int64_t d = 2; d < to.dim(); ++d) made = made.slice(d, 0, to.size(d));  // only the first places are wanted
      return made;
    });
  };
  if (by_channels(c, g))
    return c.split(w.size(0), [=](int64_t a, int64_t b) { run(out.slice(1, a, b), x, w.slice(0, a, b), 1); });
  if (x.size(0) >= static_cast<int64_t>(c.parts))
    return c.split(x.size(0), [=](int64_t a, int64_t b) { run(out.slice(0, a, b), x.slice(0, a, b), w, g.groups); });
  const int64_t outs = w.size(0) / g.groups, ins = w.size(1);
  return c.split(g.groups, [=](int64_t a, int64_t b) {
    run(out.slice(1, a * outs, b * outs), x.slice(1, a * ins, b * ins), w.slice(0, a * outs, b * outs), b - a);
  });
}

// The gradient of a convolution's input, by images or by its channels.
Tasks transposed(const HostCall& c, const Geometry& g) {
  const auto out = c.out, grad = c.in[0], w = c.in[1];
  const auto run = [g](const at::Tensor& to, const at::Tensor& gradient, const at::Tensor& weight) {
    // The library would make this copy first, where the result belongs if the two are of one size.
    const auto dense = gradient.is_non_overlapping_and_dense() ? gradient : gradient.contiguous();
    place(to, [&] {
      return std::get<0>(at::convolution_backward(dense, to, weight, c10::nullopt, g.stride, g.padding, g.dilation,
                                                  false, g.none, g.groups, {true, false, false}));
    });
  };
  if (by_channels(c, g))
    return c.split(w.size(1), [=](int64_t a, int64_t b) { run(out.slice(1, a, b), grad, w.slice(1, a, b)); });
  return c.split(grad.size(0), [=](int64_t a, int64_t b) { run(out.slice(0, a, b), grad.slice(0, a, b), w); });
}

// Whether the call is the gradient of a weight: of the sizes that a convolution with such a weight has, and on operands
// that lie with images and channels exchanged. Where these do not show (copies, one image, a sum's gradient,
// which is one number), w is larger than the result.
bool of_weight(const HostCall& c, const Geometry& g) {
  int64_t kernel = 1, result = 1;
  for (int64_t d = 2; d < c.out.dim(); ++d) {
    const auto i = static_cast<size_t>(d - 2);
    const int64_t reach = c.in[0].size(d) + 2 * g.padding[i] - g.stride[i] * (c.out.size(d) - 1) - 1;
    if (reach < 0 || reach / g.dilation[i] + 1 != c.in[1].size(d)) return false;
    kernel *= c.in[1].size(d), result *= c.out.size(d);
  }
  const auto shows = [](const at::Tensor& t) { return t.size(0) > 1 && t.size(1) > 1 && t.stride(0) != t.stride(1); };
  const auto exchanged = [](const at::Tensor& t) { return t.stride(0) < t.stride(1); };
  if (g.groups == 1 && shows(c.in[0]) && shows(c.in[1]) && exchanged(c.in[0]) == exchanged(c.in[1])) return exchanged(c.in[0]);
  return kernel > result;
}

// Adding P gradients of a weight on one thread takes 2 P^2 / places of what each of P threads multiplies before, at 16
// products and 8 sums a cycle: a twentieth with this many places.
constexpr int64_t kPlaces = 40;

// Whether parts of a convolution's images cost nothing but a weight each: to bring it into the library's layout, or to add
// its gradient. Parts by channels bring the whole other operand there, and copy what lies in pieces: the two halves of a
// gradient of (64, 3, 7, 7) take 1.0 to 2.8 ms by outputs and 0.92 by images, where the whole takes 1.9 (Zen 5).
bool by_images(const HostCall& c, const Geometry& g) {
  const bool gradient = !c.flag("transposed") && of_weight(c, g);
  const auto &weight = gradient ? c.out : c.in[1], &result = gradient ? c.in[1] : c.out;
  const auto parts = static_cast<int64_t>(c.parts), images = result.size(gradient ? 1 : 0);
  if (gradient && result.numel() < kPlaces * parts * parts * result.size(0)) return false;
  return images >= parts && weight.numel() * parts <= c.in[0].numel() + result.numel();
}

// Beyond this the library's weight gradients fall out of the cache: (512, 512, 3, 3) of 7 x 7 and 2 x 2 images takes one
// thread 28 ms in one piece or in two, 13 and 6 ms in four of 2.3 MB; smaller weights gain nothing.
constexpr int64_t kGradientBytes = 5 << 19;

// x [C / groups, groups * N, ..] with a "kernel" w [O, N, ..] larger than the result: the gradient of a weight
// [O, C / groups, ..], by images or by its outputs. Stride and dilation are exchanged.
Tasks weight_gradient(const HostCall& c, const Geometry& g) {
  const auto grad = c.in[1].transpose(0, 1), weight = c.out.transpose(0, 1);
  const int64_t images = grad.size(0), ins = c.in[0].size(0), outs = grad.size(1) / g.groups;
  const auto input = c.in[0].unflatten(1, {g.groups, images}).transpose(0, 2).flatten(1, 2);  // [N, (groups, C / groups), ..]
  const auto run = [g](const at::Tensor& to, const at::Tensor& image, const at::Tensor& gradient, int64_t groups) {
    place(to, [&] {
      return std::get<1>(at::convolution_backward(gradient, image, to, c10::nullopt, g.dilation, g.padding, g.stride, false,
                                                  g.none, groups, {false, true, false}));
    });
  };
  if (by_images(c, g)) {
    std::vector<at::Tensor> sums{weight};
    for (size_t i = 1; i < c.parts; ++i) sums.push_back(at::empty(weight.sizes(), weight.options()));
    Tasks tasks;
    for (int64_t i = 0, n = static_cast<int64_t>(c.parts); i < n; ++i) {
      const int64_t a = images * i / n, b = images * (i + 1) / n;
      tasks.push_back([=, to = sums[static_cast<size_t>(i)]] { run(to, input.slice(0, a, b), grad.slice(0, a, b), g.groups); });
    }
    for (size_t i = 1; i < c.parts; ++i) c.last->push_back([weight, more = sums[i]] { at::Tensor(weight).add_(more); });
    return tasks;
  }
  const auto by_outputs = [=](int64_t a, int64_t b) { run(weight.slice(0, a, b), input, grad.slice(1, a, b), 1); };
  if (g.groups == 1) return c.split(outs, by_outputs, static_cast<int64_t>(weight.nbytes()) / kGradientBytes);
  return c.split(g.groups, [=](int64_t a, int64_t b) {
    run(weight.slice(0, a * outs, b * outs), input.slice(1, a * ins, b * ins), grad.slice(1, a * outs, b * outs), b - a);
  });
}

Tasks convolution_tasks(const HostCall& c) {
  const Geometry g(c);
  if (c.flag("transposed")) return transposed(c, g);
  return of_weight(c, g) ? weight_gradient(c, g) : forward(c, g);
}

// out [.., m, n] = a [.., m, k] times b [.., k, n], by matrices, else by rows or columns, of whichever there are more.
Tasks product_tasks(const HostCall& c) {
  const auto out = c.out, a = c.in[0], b = c.in[1];
  const int64_t rows = out.dim() - 2, columns = out.dim() - 1;
  const auto run = [](at::Tensor to, const at::Tensor& left, const at::Tensor& right) { to.copy_(at::matmul(left, right)); };
  if (rows > 0 && out.size(0) >= static_cast<int64_t>(c.parts))
    return c.split(out.size(0), [=](int64_t i, int64_t j) { run(out.slice(0, i, j), a.slice(0, i, j), b.slice(0, i, j)); });
  if (out.size(rows) >= out.size(columns))
    return c.split(out.size(rows), [=](int64_t i, int64_t j) { run(out.slice(rows, i, j), a.slice(rows, i, j), b); });
  return c.split(out.size(columns), [=](int64_t i, int64_t j) { run(out.slice(columns, i, j), a, b.slice(columns, i, j)); });
}

const std::map<std::string, Tasks (*)(const HostCall&)> kOps = {{"convolution", convolution_tasks}, {"matmul", product_tasks}};

const std::map<uint32_t, at::ScalarType> kDtypes = {{LAZY_F32, at::kFloat}, {LAZY_BF16, at::kBFloat16}};

at::Tensor host_tensor(Device& device, const lazy_tensor& t) {
  const auto dtype = kDtypes.find(t.dtype);
  TORCH_CHECK(dtype != kDtypes.end(), "the host's library is used for float32 and bfloat16");
  std::vector<int64_t> strides(t.strides, t.strides + t.rank);
  int64_t dense = 1;  // oneDNN reads the strides of dims of one element too
  for (size_t d = t.rank; d-- > 0; dense = std::max<int64_t>(1, strides[d] * t.sizes[d]))
    if (t.sizes[d] == 1) strides[d] = dense;
  char* data = device.host_pointer(t.mem) + t.offset;
  return at::from_blob(data, {t.sizes, t.rank}, strides, at::TensorOptions().dtype(dtype->second));
}

// What a call computes, to compare calls by: of an m x k matrix with a k x n one it is mkn, of a convolution the same for
// all three of its directions.
double work(const std::vector<at::Tensor>& tensors) {
  double product = 1;
  for (const auto& t : tensors) product *= static_cast<double>(t.numel());
  return std::sqrt(product);
}

// A part brings its operands into the library's layout anew, so whole calls side by side cost less than halves: unless
// one is so much the longest that the others' threads wait for it (3 x 3 and 1 x 1 of a ResNet's block with a stride: 2.1
// and 0.6 ms side by side, 1.3 and 0.5 in halves), or halves cost little (`by_images`; unet_train 13.65 -> 13.4 ms).
constexpr double kParting = 1.2;

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

bool LibraryCall::independent(const LibraryCall& earlier) const {
  const auto overlap = [](const lazy_tensor& a, const lazy_tensor& b) {
    const auto end = [](const lazy_tensor& t) {
      int64_t last = 0;
      for (uint32_t d = 0; d < t.rank; ++d) last += (t.sizes[d] - 1) * t.strides[d];
      return t.offset + static_cast<uint64_t>(last + 1) * at::elementSize(kDtypes.at(t.dtype));
    };
    return a.mem == b.mem && a.offset < end(b) && b.offset < end(a);
  };
  if (overlap(tensors[0], earlier.tensors[0])) return false;
  for (size_t i = 1; i < tensors.size(); ++i)
    if (overlap(tensors[i], earlier.tensors[0])) return false;
  for (size_t i = 1; i < earlier.tensors.size(); ++i)
    if (overlap(tensors[0], earlier.tensors[i])) return false;
  return true;
}

// After each parallel loop of a CPU op (a batch that is indexed on the host), libgomp's threads spin for some 2 ms in case
// another follows, on cores that the device's kernels need: 2.2 to 2.8 of 24 ms of processor time in a step of the CNN
// demo. They sleep at once where libgomp manages more threads than there are cores: hence a second team, which is idle.
void spare_cores() {
  using Loop = void (*)(void (*)(void*), void*, unsigned, unsigned);
  if (auto* run = reinterpret_cast<Loop>(dlsym(RTLD_DEFAULT, "GOMP_parallel"))) run([](void*) {}, nullptr, 2, 0);
}

void run_library(Device& device, const std::vector<LibraryCall>& calls) {
  const size_t threads = std::max(1u, device.props.compute_units);
  Tasks tasks, last;
  std::vector<HostCall> found;
  std::vector<std::string> texts;  // for errors
  std::vector<double> works;
  for (const LibraryCall& call : calls) {
    std::vector<at::Tensor> views;
    std::string text = call.name + " " + call.attrs;
    for (const auto& t : call.tensors) {
      views.push_back(host_tensor(device, t));
      text += " " + c10::str(views.back().sizes(), views.back().strides());
    }
    works.push_back(work(views));
    texts.push_back(text);
    found.push_back({views[0], {views.begin() + 1, views.end()}, call.attrs, threads, &last});
  }
  std::vector<size_t> order(calls.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return works[a] > works[b]; });
  const double total = std::accumulate(works.begin(), works.end(), 0.0);
  const size_t whole = std::max<size_t>(1, threads / calls.size());
  const bool waits = works[order[0]] / static_cast<double>(whole) > kParting * total / static_cast<double>(threads);
  const bool cheap = std::all_of(order.begin(), order.end(), [&](size_t i) {
    return calls[i].name == "convolution" && by_images(found[i], Geometry(found[i]));
  });
  std::mutex mutex;
  std::exception_ptr failed;  // the first that did
  for (const size_t i : order) {
    const auto op = kOps.find(calls[i].name);
    TORCH_CHECK(op != kOps.end(), "the driver does not offer the core op ", calls[i].name);
    found[i].parts = waits || cheap ? threads : whole;
    for (auto& task : op->second(found[i]))
      tasks.push_back([&text = texts[i], task, &mutex, &failed] {
        try {
          const Alone alone;
          task();
        } catch (const std::exception& error) {
          const std::lock_guard<std::mutex> lock(mutex);
          if (!failed)
            failed = std::make_exception_ptr(c10::Error({__func__, __FILE__, __LINE__},
                                                        "the host's library failed at " + text + ": " + error.what()));
        }
      });
  }
  run(device, tasks, threads);
  if (failed) std::rethrow_exception(failed);
  const Alone alone;
  for (const auto& task : last) task();
}

}  // namespace lazy
