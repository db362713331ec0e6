#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace pomona::core {

struct Plan {
  std::vector<std::int32_t> tokens;  // each row runs in this step (0: none)
  std::vector<std::int32_t> blocks;  // new blocks each row needs for them
  std::int64_t shortage = 0;         // blocks missing after all reservations are honoured
};

// Turns a time budget into tokens per row and keeps reservations honest. All time comes in through
// observe(), so plans are a function of what was observed.
//
// Wrong arguments throw std::invalid_argument and change nothing.
//
// Thread-safety: none; one thread at a time.
// Ownership: holds the learned rates only.
class StepPlanner {
 public:
  struct Options {
    std::int64_t block_size = 64;
    double budget_s = 0.25;
    std::int64_t min_chunk = 16;
    std::int64_t max_step_tokens = 8192;
    std::int64_t reserve_tokens = 1024;
  };

  explicit StepPlanner(const Options& options);

  // Prefill tokens of the next step: the time budget at the measured rate, at least min_chunk and
  // at most max_step_tokens.
  std::int64_t prefill_budget() const;
  // Prefill tokens per second, 0 before the first observation.
  double prefill_rate() const { return rate_; }
  // Feeds back how long a step took.
  void observe(std::int64_t prefill_tokens, std::int64_t decode_rows, double seconds);

  // Blocks to promise a new row: its prompt and min(max_tokens, reserve_tokens).
  std::int64_t reservation(std::int64_t prompt_tokens, std::int64_t max_tokens) const;
  // Whether `need` more blocks fit beside what running rows hold and were promised.
  bool admits(std::int64_t need, std::span<const std::int32_t> held,
              std::span<const std::int32_t> reserved, std::int64_t available) const;
  // Shares one step among rows, oldest first. A row with one pending token decodes and is always
  // served; rows with more share the prefill budget max-min fairly.
  Plan plan(std::span<const std::int32_t> pending, std::span<const std::int32_t> length,
            std::span<const std::int32_t> held, std::span<const std::int32_t> reserved,
            std::int64_t available) const;

 private:
  double decode_seconds(std::int64_t rows) const;
  double bounded(double budget) const;

  Options options_;
  double rate_ = 0;
  double budget_ = 0;                        // tokens, before rounding
  std::map<std::int64_t, double> decode_s_;  // decode rows -> time of a step without prefill
};

}  // namespace pomona::core
