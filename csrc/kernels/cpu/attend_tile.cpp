// Compiled once per instruction set, with POMONA_VARIANT naming the namespace of the result.
//
// A chunk of K is transposed once per tile, so that scores = Q K^T and sums += P V are the same
// product: a row of coefficients broadcast against vectors of columns. Each output element is one
// chain of fused multiply-adds in the order of the depth, whatever rows share its tile; the softmax
// is a function of one row. That is what makes a row's bits independent of its neighbours.

#include "kernels/cpu/attend_tile.h"

#include "kernels/cpu/lanes.h"

namespace pomona::kernels {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLowest = -__builtin_inff();
constexpr int64_t kCacheLine = 64;

// From this many rows on, copying V next to itself costs less than its strided reads.
constexpr int64_t kPackValuesRows = 16;

int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Keys [low, high), counted from the beginning of the sequence or of a chunk.
struct Span {
  int64_t low, high;
  bool empty() const { return low >= high; }
  bool operator==(const Span&) const = default;
};

Span seen_by(const Attention& a, int64_t token) {
  const int64_t visible = a.rows.visible[token];
  return {a.window > 0 && visible > a.window ? visible - a.window : 0, visible};
}

// What `keys` has in common with the `count` keys from `first` on, counted from there.
Span part_of(Span keys, int64_t first, int64_t count) {
  const int64_t low = keys.low - first, high = keys.high - first;
  return {low > 0 ? low : 0, high < count ? high : count};
}

// Rows of a slab that lie in its blocks, in the order of the keys. While they are read, the rows of
// the next chunk are asked for: those of one head are too short and too far apart for the hardware
// to foresee.
template <typename T>
struct SlabRows {
  const T *rows, *ahead_rows;
  const int32_t *slots, *ahead_slots;
  int64_t stride;

  const T* operator()(int64_t j) const { return rows + slots[j] * stride; }

  // Inlined by force: GCC takes a function that only prefetches for one without effect and drops
  // its calls.
  __attribute__((always_inline)) void fetch_ahead(int64_t j, int64_t column, int64_t count) const {
    const char* row = reinterpret_cast<const char*>(ahead_rows + ahead_slots[j] * stride + column);
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    for (int64_t i = 0; i < bytes; i += kCacheLine) __builtin_prefetch(row + i, 0, 2);
  }
};

// Rows one after the other.
struct DenseRows {
  const float* rows;
  int64_t stride;

  const float* operator()(int64_t j) const { return rows + j * stride; }
  void fetch_ahead(int64_t, int64_t, int64_t) const {}
};

// Dense rows; while they are read, the columns from `first` on of a slab's next rows are asked for,
// some of each row per kChunk rows. So the requests spread over the time between two chunks.
template <typename T>
struct DenseRowsAskingAhead {
  static constexpr int64_t kColumns = 32;

  DenseRows dense;
  SlabRows<T> slab;
  int64_t first;

  const float* operator()(int64_t j) const { return dense(j); }
  __attribute__((always_inline)) void fetch_ahead(int64_t j, int64_t column, int64_t) const {
    if (column == 0) slab.fetch_ahead(j % kChunk, first + j / kChunk * kColumns, kColumns);
  }
};

// c[r, :] += sum over d of a[r, d] * b(d)[column + :], for R rows and N vectors of columns;
// depth > 0.
template <int R, int N, typename Rows>
void multiply_block(const float* a, int64_t a_stride, const Rows& b, int64_t column, int64_t depth,
                    float* c, int64_t c_stride) {
  Lanes sums[R][N];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) sums[r][n] = load(c + r * c_stride + column + n * kLanes);
  }
  int64_t d = 0;
  do {  // a loop that may not run at all makes GCC keep a second copy of the sums
    const auto* from = b(d) + column;
    b.fetch_ahead(d, column, N * kLanes);
    Lanes columns[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) columns[n] = load(from + n * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const Lanes factor = broadcast(a[r * a_stride + d]);
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) sums[r][n] = fma(factor, columns[n], sums[r][n]);
    }
  } while (++d < depth);
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) store(c + r * c_stride + column + n * kLanes, sums[r][n]);
  }
}

template <int N, typename Rows>
void multiply_columns(int64_t rows, const float* a, int64_t a_stride, const Rows& b, int64_t column,
                      int64_t depth, float* c, int64_t c_stride) {
  static_assert(kTileRows == 6);
  for (; rows >= 6; rows -= 6, a += 6 * a_stride, c += 6 * c_stride) {
    multiply_block<6, N>(a, a_stride, b, column, depth, c, c_stride);
  }
  switch (rows) {
    case 5:
      return multiply_block<5, N>(a, a_stride, b, column, depth, c, c_stride);
    case 4:
      return multiply_block<4, N>(a, a_stride, b, column, depth, c, c_stride);
    case 3:
      return multiply_block<3, N>(a, a_stride, b, column, depth, c, c_stride);
    case 2:
      return multiply_block<2, N>(a, a_stride, b, column, depth, c, c_stride);
    case 1:
      return multiply_block<1, N>(a, a_stride, b, column, depth, c, c_stride);
  }
}

// c[rows, width] += a[rows, depth] b[depth, width]; width is a multiple of kLanes.
template <typename Rows>
void multiply(int64_t rows, int64_t width, int64_t depth, const float* a, int64_t a_stride,
              const Rows& b, float* c, int64_t c_stride) {
  static_assert(kTileVectors == 2 || kTileVectors == 4);
  int64_t column = 0;
  for (; column + kTileVectors * kLanes <= width; column += kTileVectors * kLanes) {
    multiply_columns<kTileVectors>(rows, a, a_stride, b, column, depth, c, c_stride);
  }
  if (column + 2 * kLanes <= width) {
    multiply_columns<2>(rows, a, a_stride, b, column, depth, c, c_stride);
    column += 2 * kLanes;
  }
  if (column < width) {
    multiply_columns<1>(rows, a, a_stride, b, column, depth, c, c_stride);
  }
}

template <typename T>
const T* token_row(const TokenRows& rows, int64_t token, int64_t head) {
  return static_cast<const T*>(rows.data) + token / rows.length * rows.batch_stride +
         token % rows.length * rows.token_stride + head * rows.head_stride;
}

// One query as float32, scaled so that the softmax can use powers of two.
template <typename T>
void load_query(const TokenRows& q, const T* from, Lanes factor, float* to) {
  for (int64_t d = 0; d < q.dim; d += kLanes) {
    const int64_t count = q.dim - d < kLanes ? q.dim - d : kLanes;
    if (q.dim_stride == 1 && count == kLanes) {
      store(to + d, load(from + d) * factor);
      continue;
    }
    T values[kLanes] = {};
    for (int64_t i = 0; i < count; i++) values[i] = from[(d + i) * q.dim_stride];
    store_part(to + d, load(values) * factor, count);
  }
}

// to[d, :] = rows[:][d] for the first `depth` d, a square that is transposed in registers.
template <bool kWhole, typename T>
void pack_square(const T* const (&rows)[kLanes], int64_t first, int64_t depth, float* to) {
  Lanes square[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; i++) {
    square[i] = kWhole ? load(rows[i] + first) : load_part(rows[i] + first, depth);
  }
  transpose(square);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; i++) {
    if (kWhole || i < depth) store(to + i * kChunk, square[i]);
  }
}

// keys[d, j] = K of key j in the span. Asks for the first `ahead` columns of the next rows.
template <typename T>
void pack_keys(const SlabRows<T>& from, Span span, int64_t dim, int64_t ahead, float* keys) {
  for (int64_t j = span.low / kLanes * kLanes; j < span.high; j += kLanes) {
    const T* rows[kLanes];
    const Span known = part_of(span, j, kLanes);
    for (int64_t i = 0; i < kLanes; i++) {
      rows[i] = from(j + (i < known.low ? known.low : i < known.high ? i : known.high - 1));
    }
    int64_t d = 0;
    for (; d + kLanes <= dim; d += kLanes) {
      for (int64_t i = 0; d < ahead && i < kLanes; i++) from.fetch_ahead(j + i, d, kLanes);
      pack_square<true>(rows, d, kLanes, keys + d * kChunk + j);
    }
    if (d < dim) pack_square<false>(rows, d, dim - d, keys + d * kChunk + j);
  }
}

template <typename T>
void pack_values(const SlabRows<T>& from, Span span, int64_t dim, float* values, int64_t width) {
  for (int64_t j = span.low; j < span.high; j++) {
    const T* row = from(j);
    from.fetch_ahead(j, 0, dim);
    int64_t d = 0;
    for (; d + kLanes <= dim; d += kLanes) store(values + j * width + d, load(row + d));
    if (d < dim) store(values + j * width + d, load_part(row + d, dim - d));
  }
}

// Turns the scores of the span into weights relative to the new peak, zero elsewhere, and brings
// the row's running sums to that peak.
template <bool kWholeChunk>
void soften(float* scores, Span span, float* peak, float* total, float* values, int64_t width) {
  const int64_t first = kWholeChunk ? 0 : span.low / kLanes * kLanes;
  const int64_t end = kWholeChunk ? kChunk : span.high;
  const IntLanes index = lane_index();
  const auto inside = [&](int64_t j, Lanes x, float otherwise) {
    if (kWholeChunk) return x;
    const IntLanes outside = (index < static_cast<int32_t>(span.low - j)) |
                             (index >= static_cast<int32_t>(span.high - j));
    return select(outside, broadcast(otherwise), x);
  };
  Lanes highest = broadcast(kLowest);
  for (int64_t j = first; j < end; j += kLanes) {
    highest = max(highest, inside(j, load(scores + j), kLowest));
  }
  const float old_peak = *peak;
  const float chunk_peak = max(highest);
  const float new_peak = old_peak > chunk_peak ? old_peak : chunk_peak;

  Lanes weight = {};
  for (int64_t j = first; j < end; j += kLanes) {
    const Lanes p = inside(j, exp2(load(scores + j) - broadcast(new_peak)), 0.0f);
    store(scores + j, p);
    weight += p;
  }
  if (new_peak != old_peak) {
    const Lanes shrink = exp2(broadcast(old_peak - new_peak));
    for (int64_t d = 0; d < width; d += kLanes) store(values + d, load(values + d) * shrink);
    *total *= shrink[0];
    *peak = new_peak;
  }
  *total += sum(weight);
}

// Sums of a row over some keys join those over the keys before them.
void fold(float* peak, float* total, float* values, float next_peak, float next_total,
          const float* next_values, int64_t width) {
  const float top = *peak > next_peak ? *peak : next_peak;
  const Lanes keep = exp2(broadcast(*peak - top)), take = exp2(broadcast(next_peak - top));
  for (int64_t d = 0; d < width; d += kLanes) {
    store(values + d, fma(load(next_values + d), take, load(values + d) * keep));
  }
  *total = fma(broadcast(next_total), take, broadcast(*total) * keep)[0];
  *peak = top;
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

class Work {
 public:
  Work(const Attention& a, const Tile& tile, const TileScratch& scratch)
      : a_(a),
        tile_(tile),
        scratch_(scratch),
        group_(a.q.heads / a.keys.heads),
        head_rows_(tile.tokens * group_),
        rows_(tile.heads * head_rows_),
        width_(round_up(a.values.dim, kLanes)),
        table_(a.rows.tables + a.rows.sequence[tile.first_token] * a.rows.table_width) {
    for (int64_t token = tile.first_token; token < end_token(); token++) {
      const Span seen = seen_by(a, token);
      if (seen.empty()) continue;
      if (seen.low < keys_.low) keys_.low = seen.low;
      if (seen.high > keys_.high) keys_.high = seen.high;
    }
  }

  // Sums over all splits, folded one by one.
  void sum_all(const Sums& all) {
    clear(all);
    if (keys_.empty()) return;
    load_queries();
    for (int64_t split = keys_.low / kSplit; split * kSplit < keys_.high; split++) {
      clear(scratch_.split);
      sum_chunks(split, scratch_.split);
      fold_split(split, scratch_.split, all);
    }
  }

  void sum_split(int64_t split, const Sums& sums) {
    clear(sums);
    load_queries();
    sum_chunks(split, sums);
  }

  // Rows that see nothing of a split do not take part in its fold.
  void fold_split(int64_t split, const Sums& from, const Sums& all) const {
    for (int64_t row = 0; row < rows_; row++) {
      if (part_of(seen_by(a_, token_of(row)), split * kSplit, kSplit).empty()) continue;
      fold(all.peak + row, all.total + row, all.values + row * scratch_.value_width, from.peak[row],
           from.total[row], from.values + row * scratch_.value_width, width_);
    }
  }

  void clear(const Sums& sums) const {
    for (int64_t row = 0; row < rows_; row++) {
      sums.peak[row] = kLowest;
      sums.total[row] = 0.0f;
      float* values = sums.values + row * scratch_.value_width;
      for (int64_t d = 0; d < width_; d += kLanes) store(values + d, Lanes{});
    }
  }

  void finish(const Sums& all) const {
    with_type(a_.q.type, [&]<typename T>(T) {
      for (int64_t row = 0; row < rows_; row++) {
        const int64_t head = query_head_of(row);
        finish_row(all.values + row * scratch_.value_width, all.peak[row], all.total[row],
                   a_.sinks ? a_.sinks + head : nullptr, a_.values.dim,
                   static_cast<T*>(a_.out) + (token_of(row) * a_.q.heads + head) * a_.values.dim);
      }
    });
  }

 private:
  int64_t end_token() const { return tile_.first_token + tile_.tokens; }
  int64_t token_of(int64_t row) const { return tile_.first_token + row % head_rows_ / group_; }
  int64_t query_head_of(int64_t row) const {
    return (tile_.first_head + row / head_rows_) * group_ + row % group_;
  }

  void load_queries() const {
    const Lanes factor = broadcast(a_.scale * kLog2E);
    with_type(a_.q.type, [&]<typename T>(T) {
      for (int64_t row = 0; row < rows_; row++) {
        load_query(a_.q, token_row<T>(a_.q, token_of(row), query_head_of(row)), factor,
                   scratch_.queries + row * a_.keys.dim);
      }
    });
  }

  // Adds the keys of one split to sums that are clear.
  void sum_chunks(int64_t split, const Sums& sums) {
    const int64_t end = (split + 1) * kSplit;
    int64_t first = split * kSplit;
    if (first < keys_.low) first = keys_.low / kChunk * kChunk;
    int32_t slots[2][kChunk];
    find_slots(first, slots[0]);
    for (int64_t now = 0; first < end && first < keys_.high; first += kChunk, now = 1 - now) {
      const int32_t* ahead = slots[now];
      if (first + kChunk < keys_.high) {
        find_slots(first + kChunk, slots[1 - now]);
        ahead = slots[1 - now];
      }
      for (int64_t head = 0; head < tile_.heads; head++) {
        const bool last = head + 1 == tile_.heads;
        add_chunk(first, head, slots[now], last ? ahead : slots[now], last ? 0 : head + 1, sums);
      }
    }
  }

  // Slots of the chunk's keys; those that no row of the tile sees get a neighbour's.
  void find_slots(int64_t first, int32_t* slots) const {
    const Span span = part_of(keys_, first, kChunk);
    const int64_t size = a_.keys.block_size;
    int64_t block = (first + span.low) / size, offset = (first + span.low) % size;
    int64_t j = span.low;
    for (; j < span.high; j++, offset++) {
      if (offset == size) block++, offset = 0;
      slots[j] = static_cast<int32_t>(table_[block] * size + offset);
    }
    for (; j < kChunk; j++) slots[j] = slots[span.high - 1];
    for (j = 0; j < span.low; j++) slots[j] = slots[span.low];
  }

  template <typename T>
  SlabRows<T> slab_rows(const SlabHalf& half, int64_t head, const int32_t* slots,
                        int64_t ahead_head, const int32_t* ahead_slots) const {
    const T* data = static_cast<const T*>(half.data) + tile_.first_head * half.dim;
    return {data + head * half.dim, data + ahead_head * half.dim, slots, ahead_slots,
            half.heads * half.dim};
  }

  void add_chunk(int64_t first, int64_t head, const int32_t* slots, const int32_t* ahead_slots,
                 int64_t ahead_head, const Sums& sums) {
    const Span span = part_of(keys_, first, kChunk);
    with_type(a_.keys.type, [&]<typename T>(T) {
      score(head, span, slab_rows<T>(a_.keys, head, slots, ahead_head, ahead_slots));
    });
    const Sums own{sums.values + head * head_rows_ * scratch_.value_width,
                   sums.peak + head * head_rows_, sums.total + head * head_rows_};
    with_type(a_.values.type, [&]<typename T>(T) {
      const auto rows = slab_rows<T>(a_.values, head, slots, ahead_head, ahead_slots);
      if (head_rows_ < kPackValuesRows && a_.values.dim % kLanes == 0) {
        return add_values(first, own, rows);
      }
      pack_values(rows, span, a_.values.dim, scratch_.values, scratch_.value_width);
      add_values(first, own, DenseRows{scratch_.values, scratch_.value_width});
    });
  }

  // Scores of all rows of a KV head against the keys of the span.
  template <typename T>
  void score(int64_t head, Span span, const SlabRows<T>& keys) const {
    using Asking = DenseRowsAskingAhead<T>;
    const int64_t dim = a_.keys.dim;
    const int64_t later = head_rows_ <= kTileRows ? dim / kChunk * Asking::kColumns : 0;
    const int64_t ahead = dim - later;
    pack_keys(keys, span, dim, ahead, scratch_.keys);

    const int64_t low = span.low / kLanes * kLanes, width = round_up(span.high, kLanes) - low;
    for (int64_t r = 0; r < head_rows_; r++) {
      float* scores = scratch_.scores + r * kChunk + low;
      for (int64_t j = 0; j < width; j += kLanes) store(scores + j, Lanes{});
    }
    const DenseRows packed{scratch_.keys + low, kChunk};
    const auto multiply_by = [&](const auto& rows) {
      multiply(head_rows_, width, dim, scratch_.queries + head * head_rows_ * dim, dim, rows,
               scratch_.scores + low, kChunk);
    };
    later > 0 ? multiply_by(Asking{packed, keys, ahead}) : multiply_by(packed);
  }

  // Neighbours that see the same keys of the chunk go together; the products never touch a value
  // that a row does not see, so unwritten or foreign ones cannot reach it.
  template <typename Rows>
  void add_values(int64_t first, const Sums& sums, const Rows& values) const {
    for (int64_t token = tile_.first_token, next; token < end_token(); token = next) {
      const Span seen = part_of(seen_by(a_, token), first, kChunk);
      next = token + 1;
      while (next < end_token() && part_of(seen_by(a_, next), first, kChunk) == seen) next++;
      if (seen.empty()) continue;
      const int64_t row = (token - tile_.first_token) * group_, count = (next - token) * group_;
      float* scores = scratch_.scores + row * kChunk;
      float* to = sums.values + row * scratch_.value_width;
      for (int64_t r = 0; r < count; r++) {
        (seen == Span{0, kChunk} ? soften<true>
                                 : soften<false>)(scores + r * kChunk, seen, sums.peak + row + r,
                                                  sums.total + row + r,
                                                  to + r * scratch_.value_width, width_);
      }
      multiply(count, width_, seen.high - seen.low, scores + seen.low, kChunk,
               rows_from(values, seen.low), to, scratch_.value_width);
    }
  }

  template <typename T>
  static SlabRows<T> rows_from(SlabRows<T> rows, int64_t j) {
    rows.slots += j;
    rows.ahead_slots += j;
    return rows;
  }
  static DenseRows rows_from(DenseRows rows, int64_t j) {
    return {rows.rows + j * rows.stride, rows.stride};
  }

  const Attention& a_;
  const Tile& tile_;
  const TileScratch& scratch_;
  const int64_t group_, head_rows_, rows_, width_;
  const int32_t* table_;
  Span keys_{INT64_MAX, 0};  // seen by any row
};

}  // namespace

namespace POMONA_VARIANT {

void attend_tile(const Attention& a, const Tile& tile, const TileScratch& scratch) {
  Work work(a, tile, scratch);
  switch (tile.stage) {
    case Stage::kWhole:
      work.sum_all(scratch.all);
      return work.finish(scratch.all);
    case Stage::kSplit:
      return work.sum_split(tile.split, tile.partial);
    case Stage::kMerge: {
      work.clear(scratch.all);
      Sums partial = tile.partial;
      for (int64_t split = tile.split; split < tile.end_split; split++) {
        work.fold_split(split, partial, scratch.all);
        partial.values += tile.partial_stride;
        partial.peak += tile.partial_stride;
        partial.total += tile.partial_stride;
      }
      return work.finish(scratch.all);
    }
  }
}

}  // namespace POMONA_VARIANT
}  // namespace pomona::kernels
