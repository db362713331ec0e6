#include "ops/slab.h"

#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>

#include "mlx/utils.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace pomona::ops {
namespace {

namespace mx = mlx::core;

// A cache line, and the widest vector: rows of a power-of-two width then never straddle two lines.
constexpr size_t kAlignment = 64;

// Blocks of a long sequence are scattered over the slab: with small pages the look-up of their
// addresses costs more than reading them.
void ask_for_large_pages([[maybe_unused]] std::uintptr_t address, [[maybe_unused]] size_t bytes) {
#if defined(__linux__)
  const std::uintptr_t page = sysconf(_SC_PAGESIZE);
  const std::uintptr_t first = (address + page - 1) / page * page,
                       end = (address + bytes) / page * page;
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
}

// The contents are not cleared: no read goes past what a row has written, and touching every page
// of a slab that doubles would stall the streams that run.
mx::array allocate(const mx::Shape& shape, mx::Dtype dtype) {
  mx::array storage(shape, dtype, nullptr, {});
  mx::allocator::Data data = mx::allocator::malloc(storage.nbytes() + kAlignment);
  const auto address = reinterpret_cast<std::uintptr_t>(data.buffer().raw_ptr());
  ask_for_large_pages(address, storage.nbytes());
  const size_t skipped = (kAlignment - address % kAlignment) % kAlignment;
  const mx::array::Flags flags{.contiguous = true, .row_contiguous = true, .col_contiguous = false};
  storage.set_data(std::move(data), storage.size(), storage.strides(), flags, skipped);
  storage.set_status(mx::array::Status::available);
  return storage;
}

mx::array resized(const mx::array& from, int blocks) {
  mx::Shape shape = from.shape();
  shape[0] = blocks;
  mx::array to = allocate(shape, from.dtype());
  std::memcpy(to.data<char>(), from.data<char>(), from.nbytes());
  return to;
}

mx::Shape checked(int blocks, int block_size, int heads, int dim) {
  if (blocks < 1 || block_size < 1 || heads < 1 || dim < 1) {
    std::ostringstream message;
    message << "Slab: blocks, block_size, heads and dim must be at least 1, got " << blocks << ", "
            << block_size << ", " << heads << ", " << dim;
    throw std::invalid_argument(message.str());
  }
  return {blocks, block_size, heads, dim};
}

mx::Dtype checked(mx::Dtype dtype) {
  float_of(dtype, "Slab: dtype");
  return dtype;
}

}  // namespace

Slab::Slab(int blocks, int block_size, int k_heads, int k_dim, int v_heads, int v_dim,
           mx::Dtype dtype)
    : keys_(allocate(checked(blocks, block_size, k_heads, k_dim), checked(dtype))),
      values_(allocate(checked(blocks, block_size, v_heads, v_dim), dtype)) {}

void Slab::grow(int blocks) {
  if (blocks < this->blocks()) {
    throw std::invalid_argument("Slab: cannot grow from " + std::to_string(this->blocks()) +
                                " to " + std::to_string(blocks) + " blocks");
  }
  if (blocks == this->blocks()) return;
  // One half at a time: the old and the new slab never exist as a whole together.
  keys_ = resized(keys_, blocks);
  values_ = resized(values_, blocks);
}

mx::array Slab::copy_keys() const { return resized(keys_, blocks()); }
mx::array Slab::copy_values() const { return resized(values_, blocks()); }

std::pair<std::uintptr_t, std::uintptr_t> Slab::address() const {
  return {reinterpret_cast<std::uintptr_t>(keys_.data<char>()),
          reinterpret_cast<std::uintptr_t>(values_.data<char>())};
}

kernels::Float float_of(mx::Dtype dtype, const char* what) {
  switch (dtype.val()) {
    case mx::Dtype::Val::float32:
      return kernels::Float::kFloat32;
    case mx::Dtype::Val::bfloat16:
      return kernels::Float::kBfloat16;
    case mx::Dtype::Val::float16:
      return kernels::Float::kFloat16;
    default:
      std::ostringstream message;
      message << what << " must be float32, bfloat16 or float16, got " << dtype;
      throw std::invalid_argument(message.str());
  }
}

kernels::TokenRows token_rows(const mx::array& x) {
  return {
      .data = x.data<void>(),
      .type = float_of(x.dtype(), "x"),
      .length = x.shape(2),
      .heads = x.shape(1),
      .dim = x.shape(3),
      .batch_stride = x.strides(0),
      .head_stride = x.strides(1),
      .token_stride = x.strides(2),
      .dim_stride = x.strides(3),
  };
}

kernels::SlabHalf slab_half(const mx::array& storage) {
  return {
      .data = const_cast<mx::array&>(storage).data<void>(),
      .type = float_of(storage.dtype(), "slab"),
      .block_size = storage.shape(1),
      .heads = storage.shape(2),
      .dim = storage.shape(3),
  };
}

}  // namespace pomona::ops
