#include "core/step_planner.h"

#include <limits>
#include <stdexcept>
#include <vector>

#include "check.h"

namespace pomona::core {
namespace {

using Ints = std::vector<std::int32_t>;

const Ints kNone3{0, 0, 0};

void shares_fairly() {
  const StepPlanner planner({.min_chunk = 25});  // 100 tokens before any observation
  const Ints none(5, 0);
  CHECK((planner.plan(Ints{1, 500, 10, 1, 500}, none, none, none, 1000).tokens ==
         Ints{1, 45, 10, 1, 45}));
  CHECK((planner.plan(Ints{500, 500, 0, 500, 0}, none, none, none, 1000).tokens ==
         Ints{67, 67, 0, 66, 0}));  // nothing decodes: twice as much
  CHECK((planner.plan(Ints{2, 3, 1, 4, 5}, none, none, none, 1000).tokens == Ints{2, 3, 1, 4, 5}));
}

void serves_decode_rows_always() {
  const StepPlanner planner({.min_chunk = 8, .max_step_tokens = 4});
  CHECK((planner.plan(Ints{1, 1, 50}, kNone3, kNone3, kNone3, 9).tokens == Ints{1, 1, 2}));
  const StepPlanner tiny({.max_step_tokens = 1});
  CHECK((tiny.plan(Ints{1, 1, 50}, kNone3, kNone3, kNone3, 9).tokens == Ints{1, 1, 0}));
  const StepPlanner small({.min_chunk = 1, .max_step_tokens = 2});
  CHECK((small.plan(Ints{9, 9, 9}, kNone3, kNone3, kNone3, 9).tokens == Ints{1, 1, 0}));
}

void counts_blocks_and_shortage() {
  const StepPlanner planner({.block_size = 4, .min_chunk = 100});
  const Plan plan = planner.plan(Ints{1, 9, 1}, Ints{4, 0, 6}, Ints{1, 0, 2}, Ints{3, 2, 0}, 10);
  CHECK((plan.blocks == Ints{1, 3, 0}) && plan.shortage == 0);
  // Row 0 was promised 2 more blocks, row 1 two; it needs a third. So 5 must be available.
  CHECK(planner.plan(Ints{1, 9, 1}, Ints{4, 0, 6}, Ints{1, 0, 2}, Ints{3, 2, 0}, 5).shortage == 0);
  CHECK(planner.plan(Ints{1, 9, 1}, Ints{4, 0, 6}, Ints{1, 0, 2}, Ints{3, 2, 0}, 3).shortage == 2);
}

void admits_beside_promises() {
  const StepPlanner planner({.block_size = 64, .reserve_tokens = 1024});
  CHECK(planner.reservation(64, 100000) == 17 && planner.reservation(65, 10) == 2);
  CHECK(planner.reservation(0, 0) == 0);
  CHECK(planner.admits(4, Ints{1, 5}, Ints{3, 2}, 6) &&
        !planner.admits(5, Ints{1, 5}, Ints{3, 2}, 6));
}

void learns_the_rate() {
  StepPlanner planner({.budget_s = 0.5, .min_chunk = 16});
  CHECK(planner.prefill_rate() == 0 && planner.prefill_budget() == 64);
  planner.observe(64, 0, 0.064);
  CHECK(planner.prefill_rate() == 1000 && planner.prefill_budget() == 128);  // at most doubles
  planner.observe(128, 0, 0.128);
  planner.observe(256, 0, 0.256);
  CHECK(planner.prefill_budget() == 500);
  planner.observe(500, 0, 1e-9);
  CHECK(planner.prefill_budget() == 1000);
  StepPlanner slow({.budget_s = 0.5, .min_chunk = 16});
  slow.observe(64, 0, 1000);
  CHECK(slow.prefill_budget() == 16);
}

void takes_decode_time_off() {
  StepPlanner planner({.min_chunk = 16});
  planner.observe(0, 4, 0.5);
  CHECK(planner.prefill_rate() == 0);
  planner.observe(64, 4, 1.5);
  CHECK(planner.prefill_rate() == 64);
  StepPlanner floor({.min_chunk = 16});
  floor.observe(0, 4, 10);
  floor.observe(64, 6, 1);  // the nearest count known; leaves a tenth of the step
  CHECK(floor.prefill_rate() > 639 && floor.prefill_rate() < 641);
}

void refuses_bad_arguments() {
  StepPlanner planner({});
  CHECK_THROWS(planner.observe(-1, 0, 1), std::invalid_argument);
  CHECK_THROWS(planner.observe(1, -1, 1), std::invalid_argument);
  CHECK_THROWS(planner.observe(1, 0, -1), std::invalid_argument);
  CHECK_THROWS(planner.observe(1, 0, std::numeric_limits<double>::quiet_NaN()),
               std::invalid_argument);
  CHECK_THROWS(planner.plan(Ints{1}, Ints{}, Ints{1}, Ints{1}, 1), std::invalid_argument);
  CHECK_THROWS(planner.plan(Ints{-1}, Ints{0}, Ints{1}, Ints{1}, 1), std::invalid_argument);
  CHECK_THROWS(planner.admits(1, Ints{1}, Ints{}, 1), std::invalid_argument);
  CHECK_THROWS(planner.reservation(-1, 1), std::invalid_argument);
  CHECK_THROWS(StepPlanner({.block_size = 0}), std::invalid_argument);
  CHECK_THROWS(StepPlanner({.budget_s = 0}), std::invalid_argument);
  planner.observe(1, 0, 0);
  CHECK(planner.prefill_rate() == 0);
}

}  // namespace
}  // namespace pomona::core

int main() {
  using namespace pomona::core;
  return run_tests({{"shares fairly", shares_fairly},
                    {"serves decode rows always", serves_decode_rows_always},
                    {"counts blocks and shortage", counts_blocks_and_shortage},
                    {"admits beside promises", admits_beside_promises},
                    {"learns the rate", learns_the_rate},
                    {"takes decode time off", takes_decode_time_off},
                    {"refuses bad arguments", refuses_bad_arguments}});
}
