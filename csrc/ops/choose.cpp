#include "ops/choose.h"

#include <cmath>
#include <utility>

#include "mlx/ops.h"
#include "ops/cpu_node.h"
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
  require(logits.ndim() == 2 && logits.shape(1) > 0, "logits must be [W, V], got shape ",
          logits.shape());
  float_of(logits.dtype(), "choose: logits");
  const auto rows = static_cast<size_t>(logits.shape(0));
  require(rules.size() == rows && indices.size() == rows, "there are ", rows,
          " rows of logits but ", rules.size(), " rules and ", indices.size(), " indices");
  for (const kernels::DrawRule& rule : rules) check(rule);
  const auto work = [rules = std::move(rules), indices = std::move(indices)](
                        const std::vector<mx::array>& inputs, mx::array& out) {
    const mx::array& x = inputs[0];
    kernels::choose({.data = x.data<void>(),
                     .type = float_of(x.dtype(), "choose: logits"),
                     .rows = x.shape(0),
                     .vocab = x.shape(1)},
                    rules, indices, out.data<int32_t>());
  };
  return make_node({.name = "choose",
                    .inputs = {mx::contiguous(logits)},
                    .shape = {logits.shape(0)},
                    .dtype = mx::int32,
                    .work = work,
                    .stream = cpu_stream()});
}

}  // namespace pomona::ops
