#include "kernels/cpu/decoder_layer.h"

#include <algorithm>

#include "kernels/cpu/aligned_floats.h"
#include "kernels/cpu/variant.h"

namespace pomona::kernels {
namespace {

// Buffers of the calling thread; they grow to the largest call and are then reused.
struct Workspace {
  AlignedFloats q, k, v, attended;       // of all token rows
  AlignedFloats packed, hidden, result;  // of one block of rows, or of all for experts
};

Workspace& workspace() {
  thread_local Workspace mine;
  return mine;
}

const Norm* pointer(const std::optional<Norm>& norm) { return norm ? &*norm : nullptr; }

// out = residual + scale * norm(y), where produce(scale, residual, out) makes
// out = residual + scale * y: in one go without a norm, else by way of a buffer.
template <typename Produce>
void join(const Norm* norm, float scale, const Rows& residual, const Target& out,
          const Produce& produce) {
  if (norm == nullptr) return produce(scale, residual, out);
  float* y = workspace().result.reserve(residual.count * residual.width);
  produce(1.0f, no_rows(), target_of(y, residual.width));
  add_rows(y, residual.count, norm, scale, residual, out);
}

void prepare_heads(const std::optional<Norm>& norm, const Turning& turning, const float* angles,
                   int64_t heads, int64_t dim, float* row) {
  for (int64_t h = 0; h < heads; h++, row += dim) {
    if (norm) {
      kernels().elementwise.rms_norm(Float::kFloat32, row, dim, norm->weight, norm->eps, row);
    }
    if (turning.half > 0) {
      kernels().elementwise.turn(row, angles, turning.half, turning.traditional, turning.scale);
    }
  }
}

void write(const float* rows, const SlabHalf& slab, std::span<const int32_t> slots) {
  const int64_t width = slab.heads * slab.dim, bytes = width * size_of(slab.type);
  char* data = static_cast<char*>(slab.data);
  for (size_t t = 0; t < slots.size(); t++, rows += width) {
    kernels().convert.narrow(rows, width, slab.type, data + slots[t] * bytes);
  }
}

// Float32, token row after token row.
struct Heads {
  const float *q, *k, *v;
};

// Queries, keys and values of all token rows, normed and turned.
Heads project_heads(const AttentionBlock& a, const Context& context, const Rows& x,
                    const Norm* norm) {
  Workspace& w = workspace();
  const Linear matrices[] = {a.q, a.k, a.v};
  const auto buffer = [&](AlignedFloats& floats, const Linear& m) {
    return target_of(floats.reserve(x.count * m.weights.rows), m.weights.rows);
  };
  const Target targets[] = {buffer(w.q, a.q), buffer(w.k, a.k), buffer(w.v, a.v)};
  const auto floats = [&](int i) { return static_cast<float*>(targets[i].data); };
  for_blocks(x.count, [&](int64_t first, int64_t count) {
    const PackedLayout layout(count, x.width);
    float* packed = w.packed.reserve(layout.floats());
    pack(x.part(first, count), norm, layout, packed);
    project(layout, packed, matrices,
            [&](int64_t i, int64_t column, int64_t columns, const float* sums) {
              const Target out = targets[i].from(first);
              Epilogue{matrices[i].bias, 1.0f, no_rows(), out}(column, columns, sums, count);
            });
  });
  const int64_t values = targets[0].width + targets[1].width;
  share(x.count * values * kElementWork, x.count, 8, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++) {
      const float* angles = context.angles + t * 2 * a.turning.half;
      prepare_heads(a.q_norm, a.turning, angles, a.heads, a.head_dim(),
                    floats(0) + t * targets[0].width);
      prepare_heads(a.k_norm, a.turning, angles, a.kv_heads, a.head_dim(),
                    floats(1) + t * targets[1].width);
    }
  });
  return {floats(0), floats(1), floats(2)};
}

// Attention of all token rows, before the output projection: [T, heads * value_dim].
const float* attend_rows(const AttentionBlock& a, const Context& context, const Rows& x,
                         const Norm* norm) {
  const Heads heads = project_heads(a, context, x, norm);
  const int64_t dim = a.head_dim(), width = a.heads * dim;
  copy_blocks(context.keys, context.copies);
  copy_blocks(context.values, context.copies);
  write(heads.k, context.keys, context.slots);
  write(heads.v, context.values, context.slots);
  float* attended = workspace().attended.reserve(x.count * a.o.weights.depth);
  attend({
      .q = {.data = heads.q,
            .type = Float::kFloat32,
            .length = x.count,
            .heads = a.heads,
            .dim = dim,
            .batch_stride = 0,
            .head_stride = dim,
            .token_stride = width,
            .dim_stride = 1},
      .keys = context.keys,
      .values = context.values,
      .rows = context.rows,
      .scale = a.scale,
      .window = context.window,
      .sinks = a.sinks,
      .out = attended,
  });
  return attended;
}

void mlp_rows(const GatedMlp& mlp, const Rows& x, const Norm* norm, float scale,
              const Rows& residual, const Target& out) {
  const PackedLayout layout(x.count, x.width);
  float* packed = workspace().packed.reserve(layout.floats());
  pack(x, norm, layout, packed);
  const Epilogue epilogue{mlp.down.bias, scale, residual, out};
  gated_mlp(mlp, layout, packed, [&](int64_t, int64_t column, int64_t columns, const float* sums) {
    epilogue(column, columns, sums, x.count);
  });
}

}  // namespace

void decoder_layer(const DecoderLayer& layer, const Context& context, const Rows& x,
                   const Target& out) {
  const AttentionBlock& a = layer.attention;
  const Rows attended = rows_of(attend_rows(a, context, x, pointer(layer.before_attention)),
                                x.count, a.o.weights.depth);
  const auto attention_half = [&](int64_t first, int64_t count, float* h) {
    join(pointer(layer.after_attention), layer.residual_scale, x.part(first, count),
         target_of(h, x.width), [&](float scale, const Rows& residual, const Target& to) {
           project_rows(a.o, attended.part(first, count), scale, residual, to);
         });
    return rows_of(h, count, x.width);
  };
  if (layer.experts != nullptr) {
    const Rows h = attention_half(0, x.count, workspace().hidden.reserve(x.count * x.width));
    expert_mlp(*layer.experts, h, pointer(layer.before_mlp), pointer(layer.after_mlp),
               layer.residual_scale, h, out);
    return;
  }
  // Block by block, so that the MLP's rows are still in a cache.
  for_blocks(x.count, [&](int64_t first, int64_t count) {
    const Rows h = attention_half(first, count, workspace().hidden.reserve(count * x.width));
    join(pointer(layer.after_mlp), layer.residual_scale, h, out.from(first),
         [&](float scale, const Rows& residual, const Target& to) {
           mlp_rows(*layer.mlp, h, pointer(layer.before_mlp), scale, residual, to);
         });
  });
}

void attention_block(const AttentionBlock& block, const Context& context, const Rows& x,
                     const Target& out) {
  const int64_t width = block.o.weights.depth;
  const Rows attended = rows_of(attend_rows(block, context, x, nullptr), x.count, width);
  project_rows(block.o, attended, 1.0f, no_rows(), out);
}

void gated_mlp(const GatedMlp& mlp, const Rows& x, const Target& out) {
  for_blocks(x.count, [&](int64_t first, int64_t count) {
    mlp_rows(mlp, x.part(first, count), nullptr, 1.0f, no_rows(), out.from(first));
  });
}

}  // namespace pomona::kernels
