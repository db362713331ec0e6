#include "ops/choose.h"

#include <cmath>
#include <stdexcept>
#include <utility>

#include "kernels/cpu/variant.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/ops.h"
#include "mlx/utils.h"
#include "ops/cpu_stream.h"
#include "ops/require.h"

namespace pomona::ops {
namespace {

namespace mx = mlx::core;

constexpr Require require{"choose"};

bool in_unit(float x) { return x >= 0.0f && x <= 1.0f; }

// Another rule could keep no token at all.
void check(const kernels::DrawRule& rule) {
  require(!std::isnan(rule.temperature), "a rule's temperature is not a number");
  require(in_unit(rule.top_p) && in_unit(rule.min_p),
          "a rule's top_p and min_p must be from 0 to 1, got ", rule.top_p, " and ", rule.min_p);
}

}  // namespace

mx::array choose(const mx::array& logits, std::vector<kernels::DrawRule> rules,
                 std::vector<uint64_t> indices) {
  kernels::kernels();  // a wrong choice must raise here, not later on the stream's thread
  require(logits.ndim() == 2 && logits.shape(1) > 0, "logits must be [W, V], got shape ",
          logits.shape());
  float_of(logits.dtype(), "choose: logits");
  const auto rows = static_cast<size_t>(logits.shape(0));
  require(rules.size() == rows && indices.size() == rows, "there are ", rows,
          " rows of logits but ", rules.size(), " rules and ", indices.size(), " indices");
  for (const kernels::DrawRule& rule : rules) check(rule);
  return mx::array({logits.shape(0)}, mx::int32,
                   std::make_shared<Choose>(cpu_stream(), std::move(rules), std::move(indices)),
                   {mx::contiguous(logits)});
}

std::vector<mx::Shape> Choose::output_shapes(const std::vector<mx::array>& inputs) {
  return {{inputs[0].shape(0)}};
}

void Choose::eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  mx::array& out = outputs[0];
  out.set_data(mx::allocator::malloc(out.nbytes()));
  mx::cpu::get_command_encoder(stream()).dispatch([logits = mx::array::unsafe_weak_copy(inputs[0]),
                                                   rules = rules_, indices = indices_,
                                                   tokens = out.data<int32_t>()] {
    kernels::choose(
        {
            .data = logits.data<void>(),
            .type = float_of(logits.dtype(), "choose: logits"),
            .rows = logits.shape(0),
            .vocab = logits.shape(1),
        },
        rules, indices, tokens);
  });
}

void Choose::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  throw std::runtime_error("choose runs on the CPU only");
}

}  // namespace pomona::ops
