#include "ops/weights.h"

#include <string_view>
#include <utility>

#include "mlx/ops.h"
#include "mlx/transforms.h"
#include "ops/require.h"
#include "ops/values.h"

namespace pomona::ops {
namespace {

namespace mx = mlx::core;

constexpr Require require{"Weights"};

struct Mode {
  std::string_view name;
  kernels::Code code;
  int group_size, bits;  // 0: as given
};

constexpr Mode kModes[] = {
    {"affine", kernels::Code::kAffine, 0, 0},
    {"mxfp4", kernels::Code::kMxfp4, 32, 4},
    {"mxfp8", kernels::Code::kMxfp8, 32, 8},
    {"nvfp4", kernels::Code::kNvfp4, 16, 4},
};

kernels::Code code_of(std::string_view name, int group_size, int bits) {
  for (const Mode& mode : kModes) {
    if (mode.name != name) continue;
    const bool fits = (mode.bits == 0 || mode.bits == bits) &&
                      (mode.group_size == 0 || mode.group_size == group_size);
    require(fits, "mode ", name, " has ", mode.bits, " bits in groups of ", mode.group_size,
            ", not ", bits, " in ", group_size);
    return mode.code;
  }
  require(false, "mode ", name, " is not affine, mxfp4, mxfp8 or nvfp4");
  return kernels::Code::kDense;
}

// The arrays as they lie in memory when the kernels read them.
mx::array settled(const mx::array& x) {
  mx::array dense = mx::contiguous(x);
  mx::eval(dense);
  return dense;
}

}  // namespace

Weights::Weights(const mx::array& weight, const std::optional<mx::array>& scales,
                 const std::optional<mx::array>& biases, const std::optional<mx::array>& bias,
                 int group_size, int bits, const std::string& mode) {
  require(weight.ndim() == 2 || weight.ndim() == 3, "weight has shape ", weight.shape(),
          ", expected [rows, depth] or [experts, rows, depth]");
  require(weight.size() > 0, "weight is empty, shape ", weight.shape());
  const bool stacked = weight.ndim() == 3;
  experts_ = stacked ? weight.shape(0) : 0;
  first_.rows = weight.shape(-2);
  arrays_.push_back(settled(weight));
  if (!scales) {
    first_.type = float_of(weight.dtype(), "Weights: weight");
    first_.depth = weight.shape(-1);
  } else {
    take_packed(weight, *scales, biases, group_size, bits, mode);
  }
  first_.data = arrays_[0].data<void>();
  if (bias) {
    mx::Shape expected(weight.shape().begin(), weight.shape().end() - 1);
    require(bias->shape() == expected, "bias has shape ", bias->shape(), ", expected ", expected);
    float_of(bias->dtype(), "Weights: bias");
    bias_ = std::make_shared<const std::vector<float>>(values_of(*bias));
  }
}

void Weights::take_packed(const mx::array& weight, const mx::array& scales,
                          const std::optional<mx::array>& biases, int group_size, int bits,
                          const std::string& mode) {
  first_.code = code_of(mode, group_size, bits);
  require(weight.dtype() == mx::uint32, "packed weight must be uint32, got ", weight.dtype());
  require(bits >= 2 && bits <= 8 && bits != 7, "bits must be 2, 3, 4, 5, 6 or 8, got ", bits);
  require(group_size == 16 || group_size == 32 || group_size == 64 || group_size == 128,
          "group_size must be 16, 32, 64 or 128, got ", group_size);
  first_.bits = bits;
  first_.group_size = group_size;
  first_.depth = int64_t{weight.shape(-1)} * 32 / bits;
  mx::Shape groups = weight.shape();
  groups.back() = static_cast<int>(first_.depth / group_size);
  require(first_.depth % group_size == 0 && scales.shape() == groups, "scales have shape ",
          scales.shape(), ", expected ", groups);
  arrays_.push_back(settled(scales));
  if (first_.code == kernels::Code::kAffine) {
    first_.type = float_of(scales.dtype(), "Weights: scales");
    require(biases.has_value(), "affine weights need biases");
    require(biases->shape() == groups && biases->dtype() == scales.dtype(), "biases are ",
            biases->shape(), " ", biases->dtype(), ", scales ", groups, " ", scales.dtype());
    arrays_.push_back(settled(*biases));
    first_.biases = arrays_[2].data<void>();
  } else {
    require(scales.dtype() == mx::uint8, "scales of mode ", mode, " must be uint8, got ",
            scales.dtype());
    require(!biases.has_value(), "mode ", mode, " has no biases");
  }
  first_.scales = arrays_[1].data<void>();
}

kernels::Weights Weights::matrix(int64_t expert) const {
  kernels::Weights w = first_;
  const int64_t rows = expert * w.rows;
  const auto moved = [](const void* from, int64_t bytes) {
    return from == nullptr ? nullptr : static_cast<const char*>(from) + bytes;
  };
  w.data = moved(w.data, rows * row_bytes(w));
  if (w.code != kernels::Code::kDense) {
    const int64_t item = w.code == kernels::Code::kAffine ? kernels::size_of(w.type) : 1;
    const int64_t groups = rows * (w.depth / w.group_size) * item;
    w.scales = moved(w.scales, groups);
    w.biases = moved(w.biases, groups);
  }
  return w;
}

const float* Weights::bias(int64_t expert) const {
  return bias_ ? bias_->data() + bias_at_ + expert * first_.rows : nullptr;
}

mx::Dtype Weights::dtype() const {
  const bool bytes = first_.code != kernels::Code::kDense && first_.code != kernels::Code::kAffine;
  if (bytes) return mx::float32;
  return arrays_[first_.code == kernels::Code::kDense ? 0 : 1].dtype();
}

Weights Weights::part(int64_t first, int64_t count) const {
  require(experts_ == 0, "only a single matrix has parts");
  const bool inside = first >= 0 && first < rows() && count > 0 && count <= rows() - first;
  require(inside, count, " rows from ", first, " on lie outside the ", rows(), " of the matrix");
  Weights part = *this;
  // An "expert" of one row: the same arithmetic finds the first row of the part.
  part.first_.rows = 1;
  part.first_ = part.matrix(first);
  part.first_.rows = count;
  part.bias_at_ = bias_at_ + first;
  return part;
}

}  // namespace pomona::ops
