#include "ops/update_and_attend.h"

#include <utility>

#include "mlx/ops.h"
#include "ops/cpu_node.h"
#include "ops/require.h"

namespace pomona::ops {
namespace {

namespace mx = mlx::core;

constexpr Require require{"update_and_attend"};

void check(const mx::array& q, const mx::array& k, const mx::array& v, const Slab& slab,
           const StepTable& table, int window, const std::optional<mx::array>& sinks) {
  require(q.ndim() == 4 && k.ndim() == 4 && v.ndim() == 4,
          "q, k and v must be [B, H, L, D], got shapes ", q.shape(), ", ", k.shape(), ", ",
          v.shape());
  const mx::array &keys = slab.keys(), &values = slab.values();
  const auto batch = q.shape(0), length = q.shape(2);
  require(k.shape() == mx::Shape{batch, keys.shape(2), length, keys.shape(3)}, "k has shape ",
          k.shape(), ", expected [", batch, ", ", keys.shape(2), ", ", length, ", ", keys.shape(3),
          "] for this q and slab");
  require(v.shape() == mx::Shape{batch, values.shape(2), length, values.shape(3)}, "v has shape ",
          v.shape(), ", expected [", batch, ", ", values.shape(2), ", ", length, ", ",
          values.shape(3), "] for this q and slab");
  require(keys.shape(2) == values.shape(2), "the slab has ", keys.shape(2), " heads of K but ",
          values.shape(2), " of V");
  require(q.shape(3) == keys.shape(3), "q has width ", q.shape(3), ", the slab's K has ",
          keys.shape(3));
  require(q.shape(1) > 0 && q.shape(1) % keys.shape(2) == 0, "q has ", q.shape(1),
          " heads, not a multiple of the slab's ", keys.shape(2));
  float_of(q.dtype(), "update_and_attend: q");
  require(k.dtype() == keys.dtype() && v.dtype() == keys.dtype(), "k and v are ", k.dtype(),
          " and ", v.dtype(), ", the slab is ", keys.dtype());
  require(int64_t{batch} * length == table.tokens(), "q has ", int64_t{batch} * length,
          " token rows, the table has ", table.tokens());
  require.table_fits(table, slab);
  require(window >= 0, "window must not be negative, got ", window);
  if (sinks) {
    require(sinks->shape() == mx::Shape{q.shape(1)}, "sinks must be one logit per query head, [",
            q.shape(1), "], got shape ", sinks->shape());
    float_of(sinks->dtype(), "update_and_attend: sinks");
  }
}

// Memory as [B, L, H, D], seen as [B, H, L, D]: the model's transpose and reshape copy nothing.
void allocate_token_major(mx::array& out) {
  const int64_t heads = out.shape(1), length = out.shape(2), dim = out.shape(3);
  const mx::array::Flags flags{.contiguous = true,
                               .row_contiguous = heads == 1 || length == 1,
                               .col_contiguous = out.size() <= 1};
  out.set_data(mx::allocator::malloc(out.nbytes()), out.size(),
               {length * heads * dim, dim, heads * dim, 1}, flags);
}

}  // namespace

mx::array update_and_attend(const mx::array& q, const mx::array& k, const mx::array& v,
                            const Slab& slab, std::shared_ptr<const StepTable> table, float scale,
                            int window, const std::optional<mx::array>& sinks) {
  check(q, k, v, slab, *table, window, sinks);
  std::vector<mx::array> inputs{q, k, v, slab.keys(), slab.values()};
  if (sinks) inputs.push_back(mx::contiguous(mx::astype(*sinks, mx::float32)));
  const auto work = [table = std::move(table), scale, window](const std::vector<mx::array>& views,
                                                              mx::array& out) {
    const kernels::SlabHalf keys = slab_half(views[3]), values = slab_half(views[4]);
    kernels::copy_blocks(keys, table->copies());
    kernels::copy_blocks(values, table->copies());
    kernels::write_rows(token_rows(views[1]), keys, table->slots());
    kernels::write_rows(token_rows(views[2]), values, table->slots());
    kernels::attend({
        .q = token_rows(views[0]),
        .keys = keys,
        .values = values,
        .rows = table->rows(),
        .scale = scale,
        .window = window,
        .sinks = views.size() > 5 ? views[5].data<float>() : nullptr,
        .out = out.data<void>(),
    });
  };
  return make_node({.name = "update_and_attend",
                    .inputs = std::move(inputs),
                    .shape = {q.shape(0), q.shape(1), q.shape(2), v.shape(3)},
                    .dtype = q.dtype(),
                    .work = work,
                    .allocate = allocate_token_major});
}

}  // namespace pomona::ops
