#include "ops/step_table.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/cpu/rows.h"

namespace pomona::ops {
namespace {

template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  const auto text = [](const auto& part) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(part)>>) {
      return std::to_string(part);
    } else {
      return std::string(part);
    }
  };
  throw std::invalid_argument("StepTable: " + (text(parts) + ...));
}

std::vector<int32_t> copy(std::span<const int32_t> from) { return {from.begin(), from.end()}; }

}  // namespace

StepTable::StepTable(int block_size, std::span<const int32_t> tables, int64_t width,
                     std::span<const int32_t> sequence, std::span<const int32_t> visible,
                     std::span<const int32_t> slots, std::span<const int32_t> copies)
    : block_size_(block_size),
      width_(width),
      sequences_(width > 0 ? static_cast<int64_t>(tables.size()) / width : 0),
      tables_(copy(tables)),
      sequence_(copy(sequence)),
      visible_(copy(visible)),
      slots_(copy(slots)),
      copies_(copy(copies)) {
  if (block_size < 1) refuse("block_size must be at least 1, got ", block_size);
  if (sequence.size() != slots.size() || visible.size() != slots.size()) {
    refuse("sequence, visible and slots must have one entry per token row, got ", sequence.size(),
           ", ", visible.size(), " and ", slots.size());
  }

  // Keys a sequence has room for: up to its first unused entry.
  std::vector<int64_t> room(sequences_);
  for (int64_t s = 0; s < sequences_; s++) {
    const auto row = table(s);
    for (int64_t i = 0; i < width; i++) {
      if (row[i] < -1) refuse("tables[", s, "][", i, "] is ", row[i], ", neither a block nor -1");
      blocks_needed_ = std::max<int64_t>(blocks_needed_, row[i] + int64_t{1});
    }
    room[s] = (std::ranges::find(row, -1) - row.begin()) * block_size;
  }
  for (size_t t = 0; t < slots.size(); t++) {
    if (sequence[t] < 0 || sequence[t] >= sequences_) {
      refuse("sequence[", t, "] is ", sequence[t], ", but there are ", sequences_, " tables");
    }
    if (visible[t] < 0 || visible[t] > room[sequence[t]]) {
      refuse("visible[", t, "] is ", visible[t], ", but table ", sequence[t], " holds ",
             room[sequence[t]], " keys");
    }
    if (slots[t] < 0) refuse("slots[", t, "] is negative: ", slots[t]);
    blocks_needed_ = std::max<int64_t>(blocks_needed_, slots[t] / block_size + int64_t{1});
  }
  for (size_t i = 0; i < copies.size(); i++) {
    if (copies[i] < 0) refuse("copies[", i / 2, "] has a negative block: ", copies[i]);
    blocks_needed_ = std::max<int64_t>(blocks_needed_, copies[i] + int64_t{1});
  }
}

const float* StepTable::angles(std::span<const float> frequencies) const {
  std::lock_guard lock(angles_mutex_);
  for (const Angles& known : angles_) {
    if (std::ranges::equal(known.frequencies, frequencies)) return known.values.data();
  }
  std::vector<int32_t> positions(visible_);
  for (int32_t& p : positions) p = std::max(p - 1, 0);
  Angles& made = angles_.emplace_back();
  made.frequencies.assign(frequencies.begin(), frequencies.end());
  made.values.resize(positions.size() * 2 * frequencies.size());
  kernels::fill_angles(positions, frequencies, made.values.data());
  return made.values.data();
}

}  // namespace pomona::ops
