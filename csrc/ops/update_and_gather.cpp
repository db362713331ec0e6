#include "ops/update_and_gather.h"

#include <algorithm>
#include <utility>

#include "ops/cpu_node.h"
#include "ops/require.h"

namespace pomona::ops {
namespace {

namespace mx = mlx::core;

constexpr Require require{"update_and_gather"};

int history(const StepTable& table) { return table.tokens() == 0 ? 0 : table.visible().back(); }

}  // namespace

mx::array update_and_gather(const mx::array& x, const Slab& slab, bool values,
                            std::shared_ptr<const StepTable> table) {
  const mx::array& half = values ? slab.values() : slab.keys();
  require(x.ndim() == 4 && x.shape(0) == 1 && x.shape(1) == half.shape(2) &&
              x.shape(3) == half.shape(3),
          "x has shape ", x.shape(), ", expected [1, ", half.shape(2), ", L, ", half.shape(3), "]");
  require(x.dtype() == half.dtype(), "x is ", x.dtype(), ", the slab is ", half.dtype());
  require(x.shape(2) == table->tokens(), "x has ", x.shape(2), " token rows, the table has ",
          table->tokens());
  require(
      std::ranges::adjacent_find(table->sequence(), std::not_equal_to{}) == table->sequence().end(),
      "the token rows belong to more than one sequence");
  require.table_fits(*table, slab);
  const mx::Shape shape{1, half.shape(2), history(*table), half.shape(3)};
  const auto work = [table = std::move(table)](const std::vector<mx::array>& inputs,
                                               mx::array& out) {
    const kernels::SlabHalf slab = slab_half(inputs[1]);
    kernels::copy_blocks(slab, table->copies());
    kernels::write_rows(token_rows(inputs[0]), slab, table->slots());
    if (table->tokens() == 0) return;
    kernels::gather_rows(slab, table->table(table->sequence().back()), out.shape(2),
                         out.data<void>());
  };
  return make_node({.name = "update_and_gather",
                    .inputs = {x, half},
                    .shape = shape,
                    .dtype = half.dtype(),
                    .work = work});
}

}  // namespace pomona::ops
