// A buffer of floats that grows and is reused.

#pragma once

#include <cstdint>
#include <memory>
#include <new>

namespace pomona::kernels {

// Aligned to a cache line, which is also the widest vector.
class AlignedFloats {
 public:
  // At least `count` floats. Contents are lost when the buffer grows.
  float* reserve(int64_t count) {
    if (count > capacity_) {
      buffer_.reset(static_cast<float*>(::operator new(count * sizeof(float), kAlignment)));
      capacity_ = count;
    }
    return buffer_.get();
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(float* p) const { ::operator delete(p, kAlignment); }
  };
  std::unique_ptr<float[], Free> buffer_;
  int64_t capacity_ = 0;
};

}  // namespace pomona::kernels
