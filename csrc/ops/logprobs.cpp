#include "ops/logprobs.h"

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "kernels/cpu/logprobs.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/ops.h"
#include "mlx/utils.h"
#include "ops/cpu_stream.h"
#include "ops/require.h"

namespace pomona::ops {
namespace {

namespace mx = mlx::core;

constexpr Require require{"logprobs"};

}  // namespace

std::tuple<mx::array, mx::array, mx::array> logprobs(const mx::array& logits,
                                                     const mx::array& tokens, int top) {
  require(logits.ndim() == 2 && logits.shape(1) > 0, "logits must be [N, V], got shape ",
          logits.shape());
  float_of(logits.dtype(), "logprobs: logits");
  const auto rows = logits.shape(0);
  require(tokens.shape() == mx::Shape{rows} && tokens.dtype() == mx::int32,
          "tokens must be int32 [", rows, "], got shape ", tokens.shape(), " of ", tokens.dtype());
  require(top >= 0, "top must not be negative, got ", top);
  const auto columns = std::min(top, logits.shape(1));
  std::vector<mx::array> made = mx::array::make_arrays(
      {{rows}, {rows, columns}, {rows, columns}}, {mx::float32, mx::int32, mx::float32},
      std::make_shared<Logprobs>(cpu_stream()),
      {mx::contiguous(mx::astype(logits, mx::float32)), mx::contiguous(tokens)});
  return {made[0], made[1], made[2]};
}

void Logprobs::eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  for (mx::array& out : outputs) out.set_data(mx::allocator::malloc(out.nbytes()));
  const kernels::Logprobs to{
      .own = outputs[0].data<float>(),
      .top = outputs[1].shape(1),
      .top_tokens = outputs[1].data<int32_t>(),
      .top_logprobs = outputs[2].data<float>(),
  };
  mx::cpu::get_command_encoder(stream()).dispatch([logits = mx::array::unsafe_weak_copy(inputs[0]),
                                                   tokens = mx::array::unsafe_weak_copy(inputs[1]),
                                                   to] {
    kernels::logprobs(
        {
            .data = logits.data<void>(),
            .type = kernels::Float::kFloat32,
            .rows = logits.shape(0),
            .vocab = logits.shape(1),
        },
        tokens.data<int32_t>(), to);
  });
}

void Logprobs::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  throw std::runtime_error("logprobs runs on the CPU only");
}

}  // namespace pomona::ops
