// Compiled once per instruction set, with POMONA_VARIANT naming the namespace of the result.
//
// A block of K is transposed once per tile, so that scores = Q K^T and sums += P V are the same
// product: a row of coefficients broadcast against vectors of columns. Each output element is one
// chain of fused multiply-adds in the order of the depth, whatever rows share its tile; the softmax
// is a function of one row. That is what makes a row's bits independent of its neighbours.

#include "kernels/cpu/attend_tile.h"

#include "kernels/cpu/lanes.h"

namespace pomona::kernels {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLowest = -__builtin_inff();

// From this many rows on, copying V next to itself costs less than its strided reads.
constexpr int64_t kPackValuesRows = 16;

// c[r, :] += sum over d of a[r, d] * b[d, :], for R rows and N vectors of columns.
template <int R, int N>
void multiply_block(const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                    int64_t depth, float* c, int64_t c_stride) {
  Lanes sums[R][N];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) sums[r][n] = load(c + r * c_stride + n * kLanes);
  }
  for (int64_t d = 0; d < depth; d++) {
    Lanes columns[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) columns[n] = load(b + d * b_stride + n * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const Lanes factor = broadcast(a[r * a_stride + d]);
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) sums[r][n] = fma(factor, columns[n], sums[r][n]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) store(c + r * c_stride + n * kLanes, sums[r][n]);
  }
}

template <int N>
void multiply_columns(int64_t rows, const float* a, int64_t a_stride, const float* b,
                      int64_t b_stride, int64_t depth, float* c, int64_t c_stride) {
  static_assert(kTileRows == 6);
  for (; rows >= 6; rows -= 6, a += 6 * a_stride, c += 6 * c_stride) {
    multiply_block<6, N>(a, a_stride, b, b_stride, depth, c, c_stride);
  }
  switch (rows) {
    case 5:
      return multiply_block<5, N>(a, a_stride, b, b_stride, depth, c, c_stride);
    case 4:
      return multiply_block<4, N>(a, a_stride, b, b_stride, depth, c, c_stride);
    case 3:
      return multiply_block<3, N>(a, a_stride, b, b_stride, depth, c, c_stride);
    case 2:
      return multiply_block<2, N>(a, a_stride, b, b_stride, depth, c, c_stride);
    case 1:
      return multiply_block<1, N>(a, a_stride, b, b_stride, depth, c, c_stride);
  }
}

// c[rows, width] += a[rows, depth] b[depth, width]; width is a multiple of kLanes.
void multiply(int64_t rows, int64_t width, int64_t depth, const float* a, int64_t a_stride,
              const float* b, int64_t b_stride, float* c, int64_t c_stride) {
  int64_t column = 0;
  for (; column + kTileVectors * kLanes <= width; column += kTileVectors * kLanes) {
    multiply_columns<kTileVectors>(rows, a, a_stride, b + column, b_stride, depth, c + column,
                                   c_stride);
  }
  for (; column < width; column += kLanes) {
    multiply_columns<1>(rows, a, a_stride, b + column, b_stride, depth, c + column, c_stride);
  }
}

int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

template <typename T>
const T* token_row(const TokenRows& rows, int64_t token, int64_t head) {
  return static_cast<const T*>(rows.data) + token / rows.length * rows.batch_stride +
         token % rows.length * rows.token_stride + head * rows.head_stride;
}

// Queries as float32, scaled so that the softmax can use powers of two.
template <typename T>
void load_queries(const TokenRows& q, const Tile& tile, int64_t group, float scale, float* to) {
  const Lanes factor = broadcast(scale * kLog2E);
  for (int64_t token = tile.first_token; token < tile.first_token + tile.tokens; token++) {
    for (int64_t head = tile.kv_head * group; head < (tile.kv_head + 1) * group; head++) {
      const T* from = token_row<T>(q, token, head);
      for (int64_t d = 0; d < q.dim; d += kLanes) {
        const int64_t count = q.dim - d < kLanes ? q.dim - d : kLanes;
        T values[kLanes] = {};
        for (int64_t i = 0; i < count; i++) values[i] = from[(d + i) * q.dim_stride];
        store_part(to + d, load(values) * factor, count);
      }
      to += q.dim;
    }
  }
}

// keys[d, j] = K of token j: squares of lanes are transposed in registers.
template <typename T>
void pack_keys(const T* from, int64_t stride, int64_t tokens, int64_t dim, float* keys,
               int64_t columns) {
  for (int64_t j = 0; j < tokens; j += kLanes) {
    for (int64_t d = 0; d < dim; d += kLanes) {
      const T* corner = from + j * stride + d;
      float* to = keys + d * columns + j;
      Lanes square[kLanes];
      if (j + kLanes <= tokens && d + kLanes <= dim) {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; i++) square[i] = load(corner + i * stride);
        transpose(square);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; i++) store(to + i * columns, square[i]);
      } else {
        const int64_t rows = tokens - j < kLanes ? tokens - j : kLanes;
        const int64_t depth = dim - d < kLanes ? dim - d : kLanes;
        for (int64_t i = 0; i < kLanes; i++) {
          square[i] = i < rows ? load_part(corner + i * stride, depth) : Lanes{};
        }
        transpose(square);
        for (int64_t i = 0; i < depth; i++) store(to + i * columns, square[i]);
      }
    }
  }
}

template <typename T>
void pack_values(const T* from, int64_t stride, int64_t tokens, int64_t dim, float* values,
                 int64_t width) {
  for (int64_t j = 0; j < tokens; j++) {
    int64_t d = 0;
    for (; d + kLanes <= dim; d += kLanes) {
      store(values + j * width + d, load(from + j * stride + d));
    }
    if (d < dim) store(values + j * width + d, load_part(from + j * stride + d, dim - d));
  }
}

// Turns the scores of keys [low, high) into weights relative to the new peak, zero elsewhere, and
// brings the row's running sums to that peak.
void soften(float* scores, int64_t low, int64_t high, float* peak, float* total, float* sums,
            int64_t width) {
  const int64_t first = low / kLanes * kLanes;
  const IntLanes index = lane_index();
  const auto outside = [&](int64_t j) {
    return (index < static_cast<int32_t>(low - j)) | (index >= static_cast<int32_t>(high - j));
  };
  Lanes highest = broadcast(kLowest);
  for (int64_t j = first; j < high; j += kLanes) {
    highest = max(highest, select(outside(j), broadcast(kLowest), load(scores + j)));
  }
  const float old_peak = *peak;
  const float block_peak = max(highest);
  const float new_peak = old_peak > block_peak ? old_peak : block_peak;

  Lanes weight = {};
  for (int64_t j = first; j < high; j += kLanes) {
    const Lanes p = select(outside(j), Lanes{}, exp2(load(scores + j) - broadcast(new_peak)));
    store(scores + j, p);
    weight += p;
  }
  if (new_peak != old_peak) {
    const Lanes shrink = exp2(broadcast(old_peak - new_peak));
    for (int64_t d = 0; d < width; d += kLanes) store(sums + d, load(sums + d) * shrink);
    *total *= shrink[0];
    *peak = new_peak;
  }
  *total += sum(weight);
}

// One row's result: the sink joins the denominator, then the sums are divided by it.
template <typename T>
void finish_row(const float* sums, float peak, float total, const float* sink, int64_t dim,
                T* out) {
  float factor = 1.0f;
  if (sink != nullptr) {
    const float logit = *sink * kLog2E;
    const float top = peak > logit ? peak : logit;
    factor = exp2(broadcast(peak - top))[0];
    total = total * factor + exp2(broadcast(logit - top))[0];
  }
  const Lanes share = broadcast(total == 0.0f ? 0.0f : factor / total);
  int64_t d = 0;
  for (; d + kLanes <= dim; d += kLanes) store(out + d, load(sums + d) * share);
  if (d < dim) store_part(out + d, load(sums + d) * share, dim - d);
}

template <typename F>
void with_type(Float type, F&& body) {
  switch (type) {
    case Float::kFloat32:
      return body(float{});
    case Float::kBfloat16:
      return body(Bfloat{});
    case Float::kFloat16:
      return body(Half{});
  }
}

struct Span {
  int64_t low, high;
  bool operator==(const Span&) const = default;
};

// The keys of `block` that a row sees.
Span seen_in(const Attention& a, int64_t token, int64_t block) {
  const int64_t size = a.keys.block_size, visible = a.rows.visible[token];
  const int64_t start = a.window > 0 && visible > a.window ? visible - a.window : 0;
  const int64_t low = start - block * size, high = visible - block * size;
  return {low > 0 ? low : 0, high < size ? high : size};
}

// K and V of one block for one head, as the products want them.
struct BlockReader {
  const Attention& a;
  const TileScratch& scratch;
  int64_t head, rows;
  const float* values = nullptr;
  int64_t values_stride = 0;

  // Asks for a block that is needed soon: the rows of one head are too short and too far apart for
  // the hardware to foresee. Inlined by force: GCC takes a function that only prefetches for one
  // without effect and drops its calls.
  __attribute__((always_inline)) void prefetch(int64_t block) const {
    for (const SlabHalf* half : {&a.keys, &a.values}) {
      const int64_t item = half->type == Float::kFloat32 ? 4 : 2, bytes = half->dim * item;
      const char* row = static_cast<const char*>(half->data) +
                        (block * half->block_size * half->heads + head) * bytes;
      for (int64_t j = 0; j < half->block_size; j++, row += half->heads * bytes) {
        for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(row + line, 0, 2);
      }
    }
  }

  void load(int64_t block) {
    const SlabHalf &k = a.keys, &v = a.values;
    with_type(k.type, [&]<typename T>(T) {
      const int64_t stride = k.heads * k.dim;
      pack_keys(static_cast<const T*>(k.data) + block * k.block_size * stride + head * k.dim,
                stride, k.block_size, k.dim, scratch.keys, scratch.key_columns);
    });
    const int64_t stride = v.heads * v.dim;
    const int64_t offset = block * v.block_size * stride + head * v.dim;
    if (v.type == Float::kFloat32 && v.dim % kLanes == 0 && rows < kPackValuesRows) {
      values = static_cast<const float*>(v.data) + offset;
      values_stride = stride;
      return;
    }
    with_type(v.type, [&]<typename T>(T) {
      pack_values(static_cast<const T*>(v.data) + offset, stride, v.block_size, v.dim,
                  scratch.values, scratch.value_width);
    });
    values = scratch.values;
    values_stride = scratch.value_width;
  }
};

}  // namespace

namespace POMONA_VARIANT {

void attend_tile(const Attention& a, const Tile& tile, const TileScratch& scratch) {
  const int64_t group = a.q.heads / a.keys.heads;
  const int64_t rows = tile.tokens * group;
  const int64_t end_token = tile.first_token + tile.tokens;
  const int64_t width = round_up(a.values.dim, kLanes);
  const int32_t* table = a.rows.tables + a.rows.sequence[tile.first_token] * a.rows.table_width;

  with_type(a.q.type,
            [&]<typename T>(T) { load_queries<T>(a.q, tile, group, a.scale, scratch.queries); });
  for (int64_t r = 0; r < rows; r++) {
    scratch.peak[r] = kLowest;
    scratch.total[r] = 0.0f;
    for (int64_t d = 0; d < width; d++) scratch.sums[r * scratch.value_width + d] = 0.0f;
  }

  int64_t first_key = INT64_MAX, end_key = 0;
  for (int64_t token = tile.first_token; token < end_token; token++) {
    const int64_t visible = a.rows.visible[token];
    const int64_t start = a.window > 0 && visible > a.window ? visible - a.window : 0;
    if (start < first_key) first_key = start;
    if (visible > end_key) end_key = visible;
  }

  BlockReader reader{a, scratch, tile.kv_head, rows};
  const int64_t size = a.keys.block_size;
  for (int64_t block = first_key / size; block * size < end_key; block++) {
    bool loaded = false;
    for (int64_t token = tile.first_token; token < end_token;) {
      // Neighbours that see the same keys of this block go through it together; the products never
      // touch a key that a row does not see, so unwritten or foreign values cannot reach it.
      const Span seen = seen_in(a, token, block);
      int64_t next = token + 1;
      while (next < end_token && seen_in(a, next, block) == seen) next++;
      if (seen.low < seen.high) {
        if (!loaded) {
          if ((block + 1) * size < end_key) reader.prefetch(table[block + 1]);
          reader.load(table[block]);
        }
        loaded = true;
        const int64_t r0 = (token - tile.first_token) * group, n = (next - token) * group;
        const int64_t low = seen.low / kLanes * kLanes, high = round_up(seen.high, kLanes);
        float* scores = scratch.scores + r0 * scratch.key_columns;
        float* sums = scratch.sums + r0 * scratch.value_width;
        for (int64_t r = 0; r < n; r++) {
          for (int64_t j = low; j < high; j++) scores[r * scratch.key_columns + j] = 0.0f;
        }
        multiply(n, high - low, a.keys.dim, scratch.queries + r0 * a.keys.dim, a.keys.dim,
                 scratch.keys + low, scratch.key_columns, scores + low, scratch.key_columns);
        for (int64_t r = 0; r < n; r++) {
          soften(scores + r * scratch.key_columns, seen.low, seen.high, scratch.peak + r0 + r,
                 scratch.total + r0 + r, sums + r * scratch.value_width, width);
        }
        multiply(n, width, seen.high - seen.low, scores + seen.low, scratch.key_columns,
                 reader.values + seen.low * reader.values_stride, reader.values_stride, sums,
                 scratch.value_width);
      }
      token = next;
    }
  }

  with_type(a.q.type, [&]<typename T>(T) {
    for (int64_t r = 0; r < rows; r++) {
      const int64_t token = tile.first_token + r / group;
      const int64_t head = tile.kv_head * group + r % group;
      finish_row(scratch.sums + r * scratch.value_width, scratch.peak[r], scratch.total[r],
                 a.sinks ? a.sinks + head : nullptr, a.values.dim,
                 static_cast<T*>(a.out) + (token * a.q.heads + head) * a.values.dim);
    }
  });
}

}  // namespace POMONA_VARIANT
}  // namespace pomona::kernels
