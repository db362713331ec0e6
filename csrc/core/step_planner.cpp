#include "core/step_planner.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <stdexcept>
#include <string>

namespace pomona::core {
namespace {

constexpr double kMinSeconds = 1e-9;  // below any clock's resolution: says nothing
constexpr double kWeight = 0.3;       // of the newest observation
// Decode never explains more of a mixed step than this leaves: an estimate that is too high must
// not turn into an absurd prefill rate.
constexpr double kMinPrefillShare = 0.1;
constexpr double kMaxGrowth = 2.0;  // of the budget from one observation to the next
// While no row decodes, a longer step holds up only newcomers, and every step has a fixed cost.
constexpr std::int64_t kIdleBudgets = 2;
constexpr double kFirstChunks = 4;  // budget before any observation, in min_chunk

void require(bool ok, const char* message) {
  if (!ok) throw std::invalid_argument(message);
}

void require_counts(std::span<const std::int32_t> values, std::size_t rows, const char* name) {
  if (values.size() != rows) {
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(values.size()) +
                                " entries for " + std::to_string(rows) + " rows");
  }
  for (std::int32_t value : values) {
    if (value < 0) {
      throw std::invalid_argument(std::string(name) +
                                  " holds a negative number: " + std::to_string(value));
    }
  }
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

void blend(double& average, double sample, double weight) {
  average += weight * (sample - average);
}

// Blocks promised to rows that they do not hold yet.
std::int64_t promised(std::span<const std::int32_t> held, std::span<const std::int32_t> reserved) {
  std::int64_t sum = 0;
  for (std::size_t row = 0; row < held.size(); ++row) {
    sum += std::max(0, reserved[row] - held[row]);
  }
  return sum;
}

// Max-min fair: nobody gets more than it can use, what is left over is shared again, and the tokens
// that do not divide go to the oldest.
void share(std::int64_t budget, std::span<const std::int32_t> pending,
           std::span<std::int32_t> tokens) {
  std::vector<std::size_t> hungry;
  for (std::size_t row = 0; row < pending.size(); ++row) {
    if (pending[row] > 1) hungry.push_back(row);
  }
  while (!hungry.empty()) {
    const auto rows = static_cast<std::int64_t>(hungry.size());
    const std::int64_t each = budget / rows;
    const std::size_t satisfied = std::erase_if(hungry, [&](std::size_t row) {
      if (pending[row] > each) return false;
      tokens[row] = pending[row];
      budget -= pending[row];
      return true;
    });
    if (satisfied > 0) continue;
    std::int64_t remainder = budget % rows;
    for (std::size_t row : hungry) {
      tokens[row] = static_cast<std::int32_t>(each + (remainder-- > 0 ? 1 : 0));
    }
    return;
  }
}

}  // namespace

StepPlanner::StepPlanner(const Options& options) : options_(options) {
  require(options.block_size > 0, "block_size must be positive");
  require(std::isfinite(options.budget_s) && options.budget_s > 0, "budget_s must be positive");
  require(options.min_chunk > 0, "min_chunk must be positive");
  require(options.max_step_tokens > 0, "max_step_tokens must be positive");
  require(options.reserve_tokens >= 0, "reserve_tokens must not be negative");
  budget_ = bounded(kFirstChunks * static_cast<double>(options.min_chunk));
}

std::int64_t StepPlanner::prefill_budget() const { return static_cast<std::int64_t>(budget_); }

void StepPlanner::observe(std::int64_t prefill_tokens, std::int64_t decode_rows, double seconds) {
  require(prefill_tokens >= 0, "prefill_tokens must not be negative");
  require(decode_rows >= 0, "decode_rows must not be negative");
  require(std::isfinite(seconds) && seconds >= 0, "seconds must be a finite time");
  if (seconds < kMinSeconds) return;

  if (prefill_tokens == 0) {
    if (decode_rows == 0) return;
    const auto [known, is_new] = decode_s_.try_emplace(decode_rows, seconds);
    if (!is_new) blend(known->second, seconds, kWeight);
    return;
  }
  const double prefill_s =
      std::max(seconds - decode_seconds(decode_rows), kMinPrefillShare * seconds);
  const double sample = static_cast<double>(prefill_tokens) / prefill_s;
  if (rate_ == 0) {
    rate_ = sample;
  } else {
    // The short last chunk of a prompt is mostly fixed cost and says little about the rate.
    blend(rate_, sample, kWeight * std::min(1.0, static_cast<double>(prefill_tokens) / budget_));
  }
  budget_ = bounded(std::min(options_.budget_s * rate_, kMaxGrowth * budget_));
}

std::int64_t StepPlanner::reservation(std::int64_t prompt_tokens, std::int64_t max_tokens) const {
  require(prompt_tokens >= 0, "prompt_tokens must not be negative");
  require(max_tokens >= 0, "max_tokens must not be negative");
  return ceil_div(prompt_tokens + std::min(max_tokens, options_.reserve_tokens),
                  options_.block_size);
}

bool StepPlanner::admits(std::int64_t need, std::span<const std::int32_t> held,
                         std::span<const std::int32_t> reserved, std::int64_t available) const {
  require(need >= 0, "need must not be negative");
  require(available >= 0, "available must not be negative");
  require_counts(held, held.size(), "held");
  require_counts(reserved, held.size(), "reserved");
  return need <= available - promised(held, reserved);
}

Plan StepPlanner::plan(std::span<const std::int32_t> pending, std::span<const std::int32_t> length,
                       std::span<const std::int32_t> held, std::span<const std::int32_t> reserved,
                       std::int64_t available) const {
  const std::size_t rows = pending.size();
  require_counts(pending, rows, "pending");
  require_counts(length, rows, "length");
  require_counts(held, rows, "held");
  require_counts(reserved, rows, "reserved");
  require(available >= 0, "available must not be negative");

  Plan plan{std::vector<std::int32_t>(rows), std::vector<std::int32_t>(rows)};
  std::int64_t room = options_.max_step_tokens;
  for (std::size_t row = 0; row < rows; ++row) {
    if (pending[row] != 1) continue;
    plan.tokens[row] = 1;
    --room;
  }
  const bool decoding = room < options_.max_step_tokens;
  const std::int64_t budget = prefill_budget() * (decoding ? 1 : kIdleBudgets);
  share(std::clamp(room, std::int64_t{0}, budget), pending, plan.tokens);

  std::int64_t unreserved = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    const std::int64_t after = std::max<std::int64_t>(
        held[row], ceil_div(std::int64_t{length[row]} + plan.tokens[row], options_.block_size));
    plan.blocks[row] = static_cast<std::int32_t>(after - held[row]);
    unreserved += std::max<std::int64_t>(0, after - std::max(reserved[row], held[row]));
  }
  const std::int64_t spare = available - promised(held, reserved);
  plan.shortage = std::max<std::int64_t>(0, unreserved - spare);
  return plan;
}

// From the nearest row count seen: decode time hardly depends on the count, for it is bound by
// reading the weights.
double StepPlanner::decode_seconds(std::int64_t rows) const {
  if (rows == 0 || decode_s_.empty()) return 0;
  const auto above = decode_s_.lower_bound(rows);
  if (above == decode_s_.end()) return std::prev(above)->second;
  if (above == decode_s_.begin() || above->first == rows) return above->second;
  const auto below = std::prev(above);
  return rows - below->first <= above->first - rows ? below->second : above->second;
}

double StepPlanner::bounded(double budget) const {
  return std::min(std::max(budget, static_cast<double>(options_.min_chunk)),
                  static_cast<double>(options_.max_step_tokens));
}

}  // namespace pomona::core
