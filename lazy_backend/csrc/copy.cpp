#include "copy.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <c10/util/Exception.h>

#include <cstring>

#include "causes.h"
#include "executor.h"
#include "hooks.h"
#include "runtime.h"
#include "stats.h"
#include "stream.h"

namespace lazy {
namespace {

std::atomic<Fallback> fallback_policy{Fallback::kWarn};

// Dense: its elements fill its storage's range without gaps, in any order of dims.
bool fills_storage(const at::Tensor& t) {
  return t.is_non_overlapping_and_dense() && t.storage_offset() == 0 &&
         static_cast<uint64_t>(t.numel()) * t.itemsize() == t.storage().nbytes();
}

// Raw bytes into a buffer. Fresh buffers of an idle device with host-visible memory are written
// at once; otherwise the bytes are staged and copied in order.
void write_bytes(Buffer* buffer, const void* source, uint64_t nbytes) {
  if (nbytes == 0) return;
  note_upload(*buffer);
  Executor& ex = executor(buffer->device);
  const bool fresh = !buffer->has_data && buffer->window == 0;
  if (fresh) buffer->born = current_frame();
  if (fresh && device(buffer->device).props.host_visible && ex.idle() && !capturing(buffer->device)) {
    {
      GilRelease free;
      buffer->allocate();
      std::memcpy(buffer->block->host, source, nbytes);
    }
    buffer->has_data = true;
    cut_at_upload(buffer->device);  // here too: whether the device idled must not decide what a window is
    return;
  }
  cut_at_upload(buffer->device);
  auto keep = BufferPtr::reclaim_copy(buffer);
  auto staged = std::make_shared<std::vector<char>>(static_cast<const char*>(source), static_cast<const char*>(source) + nbytes);
  buffer->has_data = true;
  buffer->ticket = submit_action(buffer->device, Cut::kCopy, !fresh, [keep, staged, nbytes](Device& d) {
    keep->allocate();
    d.copy_h2d(keep->block->mem, keep->block->offset, staged->data(), nbytes, /*blocking=*/true);
  });
}

void record_copy(const at::Tensor& dst, const at::Tensor& src) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  torch::jit::Stack stack{dst, src, false};
  record(op, &stack);
}

void host_to_device(const at::Tensor& dst, const at::Tensor& src) {
  at::Tensor host = src.expand(dst.sizes()).to(dst.scalar_type()).resolve_conj().resolve_neg();
  if (fills_storage(dst)) {
    if (!host.strides().equals(dst.strides()) || !host.is_non_overlapping_and_dense())
      host = at::empty_strided(dst.sizes(), dst.strides(), host.options()).copy_(host);
    write_bytes(buffer_of(dst), host.data_ptr(), static_cast<uint64_t>(host.numel()) * host.itemsize());
  } else {
    record_copy(dst, upload(host.contiguous(), dst.device().index()));
  }
}

// As `x[i] += y` ends: the view that was written is copied to itself.
bool is_itself(const at::Tensor& a, const at::Tensor& b) {
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset() && a.sizes().equals(b.sizes()) &&
         a.strides().equals(b.strides()) && a.scalar_type() == b.scalar_type() && a.is_conj() == b.is_conj() &&
         a.is_neg() == b.is_neg();
}

void read(const at::Tensor& t, const char* cause) {
  stats().reads++;
  note(Event::kRead, cause);
  const Buffer& buffer = *buffer_of(t);
  Executor& ex = executor(buffer.device);
  ex.finish(cut_before_read(buffer));
  ex.raise_pending();
}

void device_to_host(const at::Tensor& dst, const at::Tensor& src) {
  read(src, "copy to the host");
  dst.copy_(host_image(src));
}

// A non-blocking copy into pinned memory is one more job of the queue: the host goes on, and waits for an event or the
// device before it looks, as with CUDA. The storage is held until the copy has run.
void device_to_pinned(const at::Tensor& dst, const at::Tensor& src) {
  const at::Tensor dense = resolved(src).to(dst.scalar_type()).expand(dst.sizes()).contiguous();
  auto from = BufferPtr::reclaim_copy(buffer_of(dense));
  const uint64_t offset = static_cast<uint64_t>(dense.storage_offset()) * dense.itemsize();
  const uint64_t bytes = static_cast<uint64_t>(dense.numel()) * dense.itemsize();
  submit_action(dense.device().index(), Cut::kCopy, true,
                [from, offset, bytes, to = dst.mutable_data_ptr(), held = dst.storage()](Device& d) {
                  from->allocate();
                  d.copy_d2h(to, from->block->mem, from->block->offset + offset, bytes, /*blocking=*/true);
                });
}

}  // namespace

at::Tensor resolved(const at::Tensor& t) {
  // Fallthrough for the conjugate and negative keys: the bits are ours to look at.
  at::Tensor out = t;
  if (out.is_conj()) out = at::conj_physical(at::_conj(out));
  if (out.is_neg()) out = at::neg(at::_neg_view(out));
  return out;
}

void wait_all(int device_index, Cut cause) {
  Executor& ex = executor(device_index);
  ex.finish(cut(device_index, cause));
  ex.raise_pending();
}

at::Tensor host_image(const at::Tensor& t) {
  Buffer* buffer = buffer_of(t);
  Device& d = device(buffer->device);
  {
    GilRelease free;
    buffer->allocate();
  }
  const auto options = at::TensorOptions().dtype(t.scalar_type());
  const auto offset = static_cast<uint64_t>(t.storage_offset()) * t.itemsize();
  at::Tensor image;
  if (d.props.host_visible) {
    auto keep = BufferPtr::reclaim_copy(buffer);
    image = at::from_blob(buffer->block->host + offset, t.sizes(), t.strides(), [keep](void*) {}, options);
  } else {
    // The bytes between the view's first and last element.
    const auto extent = at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.itemsize());
    auto bytes = at::empty({static_cast<int64_t>(extent)}, at::TensorOptions().dtype(at::kByte));
    if (extent) {
      GilRelease free;
      d.copy_d2h(bytes.data_ptr(), buffer->block->mem, buffer->block->offset + offset, extent, /*blocking=*/true);
    }
    image = at::from_blob(bytes.data_ptr(), t.sizes(), t.strides(), [bytes](void*) {}, options);
  }
  if (t.is_conj()) image = image.conj();
  if (t.is_neg()) image = at::_neg_view(image);
  return image;
}

at::Tensor host_view(const at::Tensor& t) {
  TORCH_CHECK(t.device().is_privateuseone(), "expected a lazy tensor, got one on ", t.device());
  TORCH_CHECK(device(t.device().index()).props.host_visible, "the memory of ", t.device(),
              " is not visible to the host; copy the tensor with .cpu()");
  read(t, "view by the host");
  wait_all(t.device().index(), Cut::kRead);
  const at::Tensor image = host_image(t);
  // The tensor is kept as well: while its storage lives, what is written to it is computed.
  return at::from_blob(image.mutable_data_ptr(), t.sizes(), t.strides(), [t, image](void*) {}, image.options());
}

at::Tensor upload(const at::Tensor& host, int device_index) {
  if (host.layout() != c10::kStrided) refuse_layout("sparse");
  if (host.is_quantized()) refuse_layout("quantized");
  const at::Tensor dense = host.is_non_overlapping_and_dense() ? host : host.contiguous();
  at::Tensor out = make_tensor(device_index, dense.scalar_type(), dense.sizes(), dense.strides());
  write_bytes(buffer_of(out), dense.data_ptr(), out.storage().nbytes());
  return out;
}

void set_fallback(Fallback policy) { fallback_policy = policy; }

void announce_host_op(OpEntry& op, const std::string& line) {
  const Fallback policy = fallback_policy;
  if (policy == Fallback::kSilent) return;
  if (policy == Fallback::kWarn && op.warned.exchange(true)) return;
  TORCH_CHECK_NOT_IMPLEMENTED(policy != Fallback::kError, op.name, " has no lowering for the device \"lazy\" (at ", line,
                              "), and LAZY_FALLBACK=error forbids running it on the CPU");
  TORCH_WARN(op.name, " runs on the CPU: it has no lowering for the device \"lazy\" (first at ", line,
             "). Each call waits for the device; `python -m lazy_backend coverage` lists such ops, LAZY_FALLBACK=silent hides this.");
}

// --- kernels ----------------------------------------------------------------------------------------------------------

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  const bool from_lazy = self.device().is_privateuseone(), to_lazy = dst.device().is_privateuseone();
  if (dst.numel() == 0 || (from_lazy && to_lazy && is_itself(self, dst))) return dst;
  if (from_lazy && to_lazy) {
    at::assert_no_partial_overlap(dst, self);
    const at::Tensor source = resolved(self);
    if (self.device() == dst.device())
      record_copy(dst.is_conj() ? at::_conj(dst) : dst.is_neg() ? at::_neg_view(dst) : dst,
                  dst.is_conj() ? at::conj_physical(source) : dst.is_neg() ? at::neg(source) : source);
    else
      host_to_device(dst, source.cpu());
  } else if (to_lazy) {
    host_to_device(dst, self);
  } else if (non_blocking && dst.is_contiguous() && !dst.is_conj() && !dst.is_neg() && is_pinned(dst.const_data_ptr())) {
    device_to_pinned(dst, self);
  } else {
    device_to_host(dst, self);
  }
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  at::native::resize_output(dst, self.sizes());
  return copy_from(self, dst, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  read(self, "item");
  return host_image(self).item();
}

}  // namespace lazy
