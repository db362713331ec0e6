#include "ops/update_and_gather.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "mlx/backend/cpu/encoder.h"
#include "mlx/utils.h"
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
  return mx::array(shape, half.dtype(),
                   std::make_shared<UpdateAndGather>(mx::to_stream({}), std::move(table)),
                   {x, half});
}

std::vector<mx::Shape> UpdateAndGather::output_shapes(const std::vector<mx::array>& inputs) {
  return {{1, inputs[1].shape(2), history(*table_), inputs[1].shape(3)}};
}

void UpdateAndGather::eval_cpu(const std::vector<mx::array>& inputs,
                               std::vector<mx::array>& outputs) {
  mx::array& out = outputs[0];
  out.set_data(mx::allocator::malloc(out.nbytes()));
  mx::cpu::get_command_encoder(stream()).dispatch(
      [x = mx::array::unsafe_weak_copy(inputs[0]), half = mx::array::unsafe_weak_copy(inputs[1]),
       out = mx::array::unsafe_weak_copy(out), table = table_]() mutable {
        const kernels::SlabHalf slab = slab_half(half);
        kernels::copy_blocks(slab, table->copies());
        kernels::write_rows(token_rows(x), slab, table->slots());
        if (table->tokens() == 0) return;
        kernels::gather_rows(slab, table->table(table->sequence().back()), out.shape(2),
                             out.data<void>());
      });
}

void UpdateAndGather::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  throw std::runtime_error("update_and_gather has no GPU kernel yet: use the CPU device");
}

}  // namespace pomona::ops
