// A whole decoder layer over the token rows of one model call.
//
// Everything between input and output is float32, and a row's bits depend on its own history alone.
//
// Thread-safety: as ThreadPool::run; the caller keeps two calls from writing the same slab at once.
// Ownership: nothing is kept after a call returns but buffers of the calling thread.

#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kernels/cpu/expert_mlp.h"
#include "kernels/cpu/gated_mlp.h"
#include "kernels/cpu/paged_attention.h"
#include "kernels/cpu/project.h"

namespace pomona::kernels {

struct AttentionBlock {
  Linear q, k, v, o;
  int64_t heads, kv_heads;
  float scale;
  Turning turning;
  std::optional<Norm> q_norm, k_norm;  // of each head
  const float* sinks;                  // [heads] or null

  int64_t head_dim() const { return q.weights.rows / heads; }
  int64_t value_dim() const { return v.weights.rows / kv_heads; }
};

// What the token rows of one call write and see.
struct Context {
  SlabHalf keys, values;
  RowTables rows;
  std::span<const int32_t> slots, copies;  // as in write_rows and copy_blocks
  const float* angles;                     // [T, 2 * half]: cosines, then sines
  int64_t window;                          // 0: none
};

struct DecoderLayer {
  AttentionBlock attention;
  const GatedMlp* mlp;  // or, where null,
  const ExpertMlp* experts;
  std::optional<Norm> before_attention, before_mlp, after_attention, after_mlp;
  float residual_scale;
};

// Dense x [T, hidden] to out [T, hidden]; out may not be x.
void decoder_layer(const DecoderLayer& layer, const Context& context, const Rows& x,
                   const Target& out);

// The same of one part alone, without norm and residual.
void attention_block(const AttentionBlock& block, const Context& context, const Rows& x,
                     const Target& out);
void gated_mlp(const GatedMlp& mlp, const Rows& x, const Target& out);

}  // namespace pomona::kernels
