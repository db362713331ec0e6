#include "ops/edit_logits.h"

#include <algorithm>
#include <utility>

#include "kernels/cpu/share.h"
#include "mlx/ops.h"
#include "ops/cpu_node.h"
#include "ops/cpu_stream.h"
#include "ops/require.h"

namespace pomona::ops {
namespace {

namespace mx = mlx::core;

constexpr Require require{"edit_logits"};

void check(const mx::array& logits, const std::vector<kernels::LogitEdits>& edits,
           const std::optional<mx::array>& unread) {
  require(logits.ndim() == 2, "logits must be [W, V], got shape ", logits.shape());
  float_of(logits.dtype(), "edit_logits: logits");
  require(edits.size() == static_cast<size_t>(logits.shape(0)), "there are ", logits.shape(0),
          " rows of logits but ", edits.size(), " edits");
  if (unread) {
    require(unread->ndim() == 1 && unread->dtype() == mx::int32,
            "unread must be int32 [N], got shape ", unread->shape(), " of ", unread->dtype());
  }
  const int count = unread ? unread->shape(0) : 0;
  for (size_t i = 0; i < edits.size(); i++) {
    require(edits[i].unread < count, "edits[", i, "] takes unread token ", edits[i].unread, " of ",
            count);
  }
}

}  // namespace

mx::array edit_logits(const mx::array& logits, std::vector<kernels::LogitEdits> edits,
                      const std::optional<mx::array>& unread) {
  check(logits, edits, unread);
  std::vector<mx::array> inputs{mx::contiguous(mx::astype(logits, mx::float32))};
  if (unread) inputs.push_back(mx::contiguous(*unread));
  const auto work = [edits = std::move(edits)](const std::vector<mx::array>& views,
                                               mx::array& out) {
    const size_t vocab = out.shape(1);
    const float* from = views[0].data<float>();
    std::span<const int32_t> ids;
    if (views.size() > 1) ids = {views[1].data<int32_t>(), views[1].size()};
    kernels::share(static_cast<int64_t>(out.size()), out.shape(0), 1,
                   [&](int64_t begin, int64_t end) {
                     for (int64_t r = begin; r < end; r++) {
                       const std::span row(out.data<float>() + r * vocab, vocab);
                       std::copy_n(from + r * vocab, vocab, row.data());
                       kernels::edit_logits(edits[r], ids, row);
                     }
                   });
  };
  return make_node({.name = "edit_logits",
                    .inputs = std::move(inputs),
                    .shape = logits.shape(),
                    .dtype = mx::float32,
                    .work = work,
                    .stream = cpu_stream()});
}

}  // namespace pomona::ops
