#include "kernels/cpu/expert_mlp.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/cpu/aligned_floats.h"
#include "kernels/cpu/variant.h"

namespace pomona::kernels {
namespace {

// Most floats of packed activations at once (64 MB): more rows share each reading of an expert.
constexpr int64_t kPackedFloats = 1 << 24;

// A row that goes to an expert; its result belongs to `place`.
struct Visit {
  int32_t row, place;
};

// Rows of one expert that are multiplied together.
struct Group {
  const GatedMlp* expert;
  int64_t first, count;  // visits
};

// Buffers of the calling thread; they grow to the largest call and are then reused.
struct Workspace {
  AlignedFloats rows, logits, packed, inner, result;
  std::vector<int32_t> ids;     // [rows, k], ascending in a row; -1: none
  std::vector<float> weights;   // [rows, k]
  std::vector<float> scales;    // [rows], of the shared MLP
  std::vector<Visit> visits;    // by expert, then by row
  std::vector<int64_t> starts;  // of each expert's visits
  std::vector<Group> groups;
};

Workspace& workspace() {
  thread_local Workspace mine;
  return mine;
}

// Sorts the places [rows, k] of w.ids by expert.
void group_by_expert(std::span<const GatedMlp> experts, std::span<const int32_t> ids, int64_t k,
                     Workspace& w) {
  const auto known = [&](int32_t id) { return id >= 0 && id < std::ssize(experts); };
  w.starts.assign(experts.size() + 1, 0);
  for (const int32_t id : ids) {
    if (known(id)) w.starts[id + 1]++;
  }
  for (size_t e = 0; e < experts.size(); e++) w.starts[e + 1] += w.starts[e];
  w.groups.clear();
  for (size_t e = 0; e < experts.size(); e++) {
    for (int64_t first = w.starts[e]; first < w.starts[e + 1]; first += kRowBlock) {
      w.groups.push_back({&experts[e], first, std::min(kRowBlock, w.starts[e + 1] - first)});
    }
  }
  w.visits.resize(w.starts.back());
  for (size_t place = 0; place < ids.size(); place++) {
    if (!known(ids[place])) continue;
    w.visits[w.starts[ids[place]]++] = {static_cast<int32_t>(static_cast<int64_t>(place) / k),
                                        static_cast<int32_t>(place)};
  }
}

// The rows of a group, packed.
void pack_group(const float* rows, const PackedLayout& layout, const Visit* visits, float* packed) {
  thread_local AlignedFloats buffer;
  const int64_t width = layout.depth();
  float* gathered = buffer.reserve(layout.tile_rows() * width);
  for (int64_t tile = 0; tile < layout.tiles(); tile++) {
    const int64_t first = layout.first_row(tile), count = layout.rows_of(tile);
    for (int64_t r = 0; r < count; r++) {
      std::copy_n(rows + visits[first + r].row * width, width, gathered + r * width);
    }
    kernels().elementwise.pack(gathered, width, count, width, packed + layout.offset_of(tile));
  }
}

// Inner activations of all visits, packed for `down`, each group from its first visit on.
const float* inner_activations(const float* rows, int64_t hidden, int64_t inner_width,
                               Workspace& w) {
  const int64_t visits = std::ssize(w.visits), groups = std::ssize(w.groups);
  float* packed = w.packed.reserve(visits * hidden);
  float* inner = w.inner.reserve(visits * inner_width);
  share(visits * hidden * kElementWork, groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; g++) {
      const auto [expert, first, count] = w.groups[g];
      pack_group(rows, PackedLayout(count, hidden), &w.visits[first], packed + first * hidden);
    }
  });
  const int64_t units = units_of(inner_width);
  const int64_t work = groups == 0 ? 0 : visits * inner_work(*w.groups[0].expert);
  share(work, groups * units, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      const auto [expert, first, count] = w.groups[i / units];
      inner_unit(*expert, PackedLayout(count, hidden), packed + first * hidden, i % units,
                 PackedLayout(count, inner_width), inner + first * inner_width);
    }
  });
  return inner;
}

// Calls finish(visit, column, columns, sums [kUnit], bias [columns] or null) for every visit's
// products with `down`. The visits of one unit of columns come in order, on one thread.
using FinishVisit = FunctionRef<void(const Visit& visit, int64_t column, int64_t columns,
                                     const float* sums, const float* bias)>;
void project_down(const float* inner, int64_t hidden, int64_t inner_width, const Workspace& w,
                  FinishVisit finish) {
  const int64_t visits = std::ssize(w.visits), groups = std::max<int64_t>(1, std::ssize(w.groups));
  const int64_t step = units_at_once(visits / groups);
  share_units(
      visits * hidden * inner_width, units_of(hidden), step, [&](int64_t begin, int64_t end) {
        thread_local AlignedFloats buffer;
        for (int64_t u = begin; u < end; u += step) {
          const int64_t n = std::min(step, end - u);
          for (const auto& [expert, first, count] : w.groups) {
            float* sums = buffer.reserve(2 * count * kUnit);
            const Linear& down = expert->down;
            const Unit pair[] = {{&down.weights, u * kUnit}, {&down.weights, (u + 1) * kUnit}};
            multiply(PackedLayout(count, inner_width), inner + first * inner_width,
                     std::span(pair, n), sums);
            for (int64_t i = 0; i < n * count; i++) {
              const int64_t column = (u + i / count) * kUnit;
              finish(w.visits[first + i % count], column, std::min(kUnit, hidden - column),
                     sums + i * kUnit, down.bias == nullptr ? nullptr : down.bias + column);
            }
          }
        }
      });
}

// out = residual + scale * (x + bias), one row.
void add_row(const float* x, int64_t columns, const float* bias, float scale, const float* residual,
             Float type, void* out) {
  kernels().elementwise.add({
      .rows = 1,
      .columns = columns,
      .x = x,
      .x_stride = 0,
      .bias = bias,
      .scale = scale,
      .residual = residual,
      .residual_type = Float::kFloat32,
      .residual_stride = 0,
      .out = out,
      .out_type = type,
      .out_stride = 0,
  });
}

// The k greatest of `logits`, ascending by id; of equal ones those with lower ids. NaN is never
// greater.
void choose(const float* logits, int64_t count, int64_t k, int32_t* ids) {
  for (int64_t chosen = 0; chosen < k; chosen++) {
    const auto taken = [&](int32_t id) { return std::find(ids, ids + chosen, id) != ids + chosen; };
    int32_t best = -1;
    for (int32_t id = 0; id < count; id++) {
      if ((best < 0 || logits[id] > logits[best]) && !taken(id)) best = id;
    }
    ids[chosen] = best;
  }
  std::sort(ids, ids + k);
}

void weigh(const ExpertMlp& mlp, float* logits, const int32_t* ids, float* weights) {
  const int64_t k = mlp.top_k;
  const auto take = [&] {
    for (int64_t i = 0; i < k; i++) weights[i] = logits[ids[i]];
  };
  switch (mlp.scoring) {
    case Scoring::kSoftmax:
      kernels().elementwise.softmax(logits, std::ssize(mlp.experts));
      take();
      break;
    case Scoring::kTopkSoftmax:
      take();
      kernels().elementwise.softmax(weights, k);
      break;
    case Scoring::kSigmoid:
      take();
      kernels().elementwise.sigmoid(weights, k);
      break;
  }
  if (!mlp.normalise) return;
  float total = 0.0f;
  for (int64_t i = 0; i < k; i++) total += weights[i];
  for (int64_t i = 0; i < k; i++) weights[i] /= total;
}

// Experts and weights of each row.
void route(const ExpertMlp& mlp, const Rows& x, Workspace& w) {
  const int64_t experts = std::ssize(mlp.experts), k = mlp.top_k;
  float* logits = w.logits.reserve(x.count * experts);
  project_rows(mlp.router, x, 1.0f, no_rows(), target_of(logits, experts));
  w.ids.resize(x.count * k);
  w.weights.resize(x.count * k);
  share(x.count * experts * k, x.count, 8, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) {
      choose(logits + r * experts, experts, k, &w.ids[r * k]);
      weigh(mlp, logits + r * experts, &w.ids[r * k], &w.weights[r * k]);
    }
  });
}

// y += sigmoid(gate) * shared(x).
void add_shared(const ExpertMlp& mlp, const Rows& x, float* y, Workspace& w) {
  w.scales.assign(x.count, 1.0f);
  if (mlp.shared_gate != nullptr) {
    project_rows(*mlp.shared_gate, x, 1.0f, no_rows(), target_of(w.scales.data(), 1));
    kernels().elementwise.sigmoid(w.scales.data(), x.count);
  }
  for_blocks(x.count, [&](int64_t start, int64_t count) {
    const PackedLayout layout(count, x.width);
    float* packed = w.packed.reserve(layout.floats());
    pack(x.part(start, count), nullptr, layout, packed);
    gated_mlp(*mlp.shared, layout, packed,
              [&](int64_t, int64_t column, int64_t columns, const float* sums) {
                const float* bias = mlp.shared->down.bias;
                for (int64_t r = 0; r < count; r++) {
                  float* to = y + (start + r) * x.width + column;
                  add_row(sums + r * kUnit, columns, bias == nullptr ? nullptr : bias + column,
                          w.scales[start + r], to, Float::kFloat32, to);
                }
              });
  });
}

// Float32 rows, few enough for the buffers: y [rows, hidden].
void mix(const ExpertMlp& mlp, const Rows& x, float* y) {
  Workspace& w = workspace();
  const int64_t hidden = x.width, inner_width = mlp.experts[0].inner();
  const float* rows = static_cast<const float*>(x.data);
  route(mlp, x, w);
  group_by_expert(mlp.experts, w.ids, mlp.top_k, w);
  const float* inner = inner_activations(rows, hidden, inner_width, w);
  std::fill_n(y, x.count * hidden, 0.0f);
  project_down(inner, hidden, inner_width, w,
               [&](const Visit& visit, int64_t column, int64_t columns, const float* sums,
                   const float* bias) {
                 float* to = y + visit.row * hidden + column;
                 add_row(sums, columns, bias, w.weights[visit.place], to, Float::kFloat32, to);
               });
  if (mlp.shared != nullptr) add_shared(mlp, x, y, w);
}

// How many rows the buffers hold.
int64_t rows_at_once(const GatedMlp& expert, int64_t k) {
  return std::max(kRowBlock, kPackedFloats / (k * (expert.hidden() + expert.inner())));
}

}  // namespace

void expert_mlp(const ExpertMlp& mlp, const Rows& x, const Norm* before, const Norm* after,
                float scale, const Rows& residual, const Target& out) {
  Workspace& w = workspace();
  const int64_t step = rows_at_once(mlp.experts[0], mlp.top_k);
  for (int64_t first = 0; first < x.count; first += step) {
    const int64_t count = std::min(step, x.count - first);
    float* rows = w.rows.reserve(count * x.width);
    load_rows(x.part(first, count), before, rows);
    float* y = w.result.reserve(count * x.width);
    mix(mlp, rows_of(rows, count, x.width), y);
    add_rows(y, count, after, scale, part_of(residual, first, count), out.from(first));
  }
}

void switch_glu(std::span<const GatedMlp> experts, const Rows& x, const int32_t* indices, int64_t k,
                const Target& out) {
  if (k == 0) return;
  Workspace& w = workspace();
  const int64_t step = rows_at_once(experts[0], k), hidden = x.width;
  const std::vector<float> nothing(hidden, std::numeric_limits<float>::quiet_NaN());
  for (int64_t first = 0; first < x.count; first += step) {
    const int64_t count = std::min(step, x.count - first);
    const std::span ids(indices + first * k, count * k);
    const Target places = out.from(first * k);
    float* rows = w.rows.reserve(count * hidden);
    load_rows(x.part(first, count), nullptr, rows);
    group_by_expert(experts, ids, k, w);
    const float* inner = inner_activations(rows, hidden, experts[0].inner(), w);
    project_down(inner, hidden, experts[0].inner(), w,
                 [&](const Visit& visit, int64_t column, int64_t columns, const float* sums,
                     const float* bias) {
                   add_row(sums, columns, bias, 1.0f, nullptr, out.type,
                           places.at(visit.place, column));
                 });
    for (int64_t place = 0; place < count * k; place++) {
      if (ids[place] >= 0 && ids[place] < std::ssize(experts)) continue;
      kernels().convert.narrow(nothing.data(), hidden, out.type, places.at(place));
    }
  }
}

}  // namespace pomona::kernels
