// Training kernel for LeNet-5-shaped networks on one CPU core.
//
// Network: blocks of [5x5 valid convolution, bias, ReLU, 2x2 max-pool], then fully connected layers
// with ReLU (together the extractor, parameters theta), then a linear head (parameters phi).
//
// Layouts
//   lanes   [c][y][x][8]   eight samples side by side, one per SIMD lane: forward pass, small GEMMs
//   rows    [8][k]         one sample after the other: weight gradients of dense layers
//   pixels  [y][x][c]      one sample, channels last: a row of a 5x5 patch is 5*c adjacent floats. Where
//                          gradients are added to patches, c is rounded up to eight if that costs little:
//                          overlapping patches then meet in whole vectors
//
// Forward: one 2x2 pool window times up to three output channels stays in twelve registers; bias,
// pooling, ReLU and the arg-max are applied before anything is stored.
// Backward: behind ReLU and pooling at most one of four convolution outputs has a gradient. The
// survivors are collected into lists of (gradient, offset); weight and input gradients are then sums of
// scaled 5x5 patches over the list.
//
// Everything is computed in one fixed order by one thread; there is no global state. Plans are read-only
// after creation; a workspace and a tape belong to one call at a time.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(_WIN32)
#define API extern "C" __declspec(dllexport)
#else
#define API extern "C" __attribute__((visibility("default")))
#endif

namespace {

constexpr int LANES = 8;
constexpr int KERNEL = 5;
constexpr int TAPS = KERNEL * KERNEL;
constexpr int MAX_BLOCKS = 3;
constexpr int MAX_DENSE = 8;
constexpr int DEAD = 4;           // arg-max code of a window without a positive output
constexpr int EVAL_GROUPS = 8;    // groups of eight samples evaluated together

typedef float v8 __attribute__((vector_size(32), may_alias));
typedef float v8u __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t i8x __attribute__((vector_size(32), may_alias));

enum Status : int {
    OK = 0,
    NO_MEMORY = 1,
    BAD_INDEX = 2,
    BAD_LABEL = 3,
    NOT_FINITE = 4,
    BAD_CALL = 5,
};

#define INLINE inline __attribute__((always_inline))

INLINE v8 splat(float a) { return v8{a, a, a, a, a, a, a, a}; }
INLINE i8x splat_i(int32_t a) { return i8x{a, a, a, a, a, a, a, a}; }
INLINE v8 load(const float* p) { return *reinterpret_cast<const v8*>(p); }
INLINE v8 loadu(const float* p) { return *reinterpret_cast<const v8u*>(p); }
INLINE void store(float* p, v8 a) { *reinterpret_cast<v8*>(p) = a; }
INLINE void storeu(float* p, v8 a) { *reinterpret_cast<v8u*>(p) = a; }

INLINE float total(v8 a) { return ((a[0] + a[4]) + (a[1] + a[5])) + ((a[2] + a[6]) + (a[3] + a[7])); }

// acc += a * b, in place. The compiler's own choice among the three forms of the instruction copies and
// spills accumulators in the blocked loops below, so with FMA the form is fixed.
INLINE void fma_into(v8& acc, v8 a, v8 b) {
#if defined(__AVX2__) && defined(__FMA__)
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(acc) : "x"(a), "x"(b));
#else
    acc += a * b;
#endif
}

// acc += a * (eight floats at p, any alignment)
INLINE void fma_load(v8& acc, v8 a, const float* p) {
#if defined(__AVX2__) && defined(__FMA__)
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(acc) : "x"(a), "m"(*reinterpret_cast<const v8u*>(p)));
#else
    acc += a * loadu(p);
#endif
}

// The next row of a patch. Hidden from the compiler, which otherwise keeps one offset per vector around.
INLINE const float* advance(const float* p, size_t row) {
    p += row;
#if defined(__GNUC__)
    __asm__("" : "+r"(p));
#endif
    return p;
}

// Keeps loads from being shared across it: reloading is free here, a register is not.
INLINE void forget_loads() {
#if defined(__AVX2__)
    __asm__ volatile("" ::: "memory");
#endif
}

// Short loops over registers must be unrolled before the compiler decides what lives in a register.
#define PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define UNROLL PRAGMA(clang loop unroll(full))
#else
#define UNROLL PRAGMA(GCC unroll 32)
#endif

constexpr size_t up8(size_t n) { return (n + 7) & ~size_t{7}; }

// ------------------------------------------------------------------------------------ buffers

template <class T>
struct Buffer {
    T* data = nullptr;
    size_t count = 0;

    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { std::free(data); }

    // Grows to n elements, zero-filled when newly made; the old content is not kept.
    void need(size_t n) {
        if (n <= count) return;
        std::free(data);
        data = nullptr;
        count = 0;
        const size_t bytes = (n * sizeof(T) + 63) & ~size_t{63};
        void* p = nullptr;
        if (posix_memalign(&p, 64, bytes) != 0) throw std::bad_alloc();
        std::memset(p, 0, bytes);
        data = static_cast<T*>(p);
        count = n;
    }
    operator T*() const { return data; }
};

struct Block {
    int in, side, out, pooled;   // input channels and side, output channels, side after the pool
    int step;                    // floats per pixel in pixels layout: in, or in rounded up to eight
    int vecs;                    // vectors that hold one patch row of 5*step floats
    size_t weight, bias;         // offsets into theta
    size_t windows, windows8;    // pooled*pooled, and rounded up to eight
    size_t in_lanes, out_lanes;  // floats per group of eight samples
    size_t pixel_stride;         // floats between two samples in pixels layout, with slack for overruns
    Buffer<int32_t> pixel_source;   // pixels index -> index of the lanes vector
    Buffer<int32_t> window_offset;  // window -> pixels offset of its upper left patch
};

struct Dense {
    int in, out;
    size_t weight, bias;
};

struct Plan {
    int channels, side, blocks, dense, classes;
    Block block[MAX_BLOCKS];
    Dense layer[MAX_DENSE];
    Dense head;
    int features;
    size_t theta_size, phi_size, sample_size;
    bool normalise;
    Buffer<float> scale, shift;          // for uint8 input
    Buffer<float> scale_f32, shift_f32;  // for float input
};

struct Tape {
    int64_t samples = -1;
    Buffer<float> pooled[MAX_BLOCKS];
    Buffer<uint8_t> arg[MAX_BLOCKS];   // [group][8][out][windows8]
    Buffer<float> dense[MAX_DENSE];
};

struct Workspace {
    Buffer<float> input;                 // lanes of one group
    Buffer<uint8_t> arg;                 // [out][window][8] of one group
    Buffer<float> packed[MAX_BLOCKS];    // forward weights, [block of m channels][in*25][m]
    Buffer<float> patch[MAX_BLOCKS];     // weights as padded patch rows, [out][5][vecs*8]
    Buffer<float> dpatch[MAX_BLOCKS];    // their gradient
    Buffer<float> dbias[MAX_BLOCKS];     // gradient of the bias, [out][8]
    Buffer<float> pixels[MAX_BLOCKS];    // input of each block, one group
    Buffer<float> dpixels[MAX_BLOCKS];   // its gradient, one sample
    Buffer<float> dtop, dchannels;       // gradient after the last pool (one group), another (one sample)
    Buffer<float> list_g;
    Buffer<int32_t> list_at;
    Buffer<float> rows_x, rows_d;
    Buffer<float> grad_a, grad_b;        // gradients between dense layers, lanes
    Buffer<float> logits;
    Buffer<float> theta_grad, phi_grad;
    Buffer<float> shifted, extra_grad;   // features that the head sees, lanes; gradient of the extra vector
    Buffer<float> targets;               // rows of the class targets of one group, as lanes
    Buffer<float> z_rows, t_rows, t_lanes;             // features of student and teacher, one batch
    Buffer<float> gap_zz, gap_zt, gap_tt;              // squared distances between them
    Buffer<float> soft;                                // the teacher's answers, lanes
    Buffer<float> mixed;                               // theta and phi of a mixture
    Tape tape;                           // of the whole-epoch call and of evaluation
};

// ---------------------------------------------------------------------------------- transposes

#if defined(__AVX2__)
INLINE void transpose8(v8 (&r)[8]) {
    __m256 a0 = _mm256_unpacklo_ps((__m256)r[0], (__m256)r[1]);
    __m256 a1 = _mm256_unpackhi_ps((__m256)r[0], (__m256)r[1]);
    __m256 a2 = _mm256_unpacklo_ps((__m256)r[2], (__m256)r[3]);
    __m256 a3 = _mm256_unpackhi_ps((__m256)r[2], (__m256)r[3]);
    __m256 a4 = _mm256_unpacklo_ps((__m256)r[4], (__m256)r[5]);
    __m256 a5 = _mm256_unpackhi_ps((__m256)r[4], (__m256)r[5]);
    __m256 a6 = _mm256_unpacklo_ps((__m256)r[6], (__m256)r[7]);
    __m256 a7 = _mm256_unpackhi_ps((__m256)r[6], (__m256)r[7]);
    __m256 b0 = _mm256_shuffle_ps(a0, a2, 0x44);
    __m256 b1 = _mm256_shuffle_ps(a0, a2, 0xEE);
    __m256 b2 = _mm256_shuffle_ps(a1, a3, 0x44);
    __m256 b3 = _mm256_shuffle_ps(a1, a3, 0xEE);
    __m256 b4 = _mm256_shuffle_ps(a4, a6, 0x44);
    __m256 b5 = _mm256_shuffle_ps(a4, a6, 0xEE);
    __m256 b6 = _mm256_shuffle_ps(a5, a7, 0x44);
    __m256 b7 = _mm256_shuffle_ps(a5, a7, 0xEE);
    r[0] = (v8)_mm256_permute2f128_ps(b0, b4, 0x20);
    r[1] = (v8)_mm256_permute2f128_ps(b1, b5, 0x20);
    r[2] = (v8)_mm256_permute2f128_ps(b2, b6, 0x20);
    r[3] = (v8)_mm256_permute2f128_ps(b3, b7, 0x20);
    r[4] = (v8)_mm256_permute2f128_ps(b0, b4, 0x31);
    r[5] = (v8)_mm256_permute2f128_ps(b1, b5, 0x31);
    r[6] = (v8)_mm256_permute2f128_ps(b2, b6, 0x31);
    r[7] = (v8)_mm256_permute2f128_ps(b3, b7, 0x31);
}
#else
INLINE void transpose8(v8 (&r)[8]) {
    float t[8][8];
    for (int i = 0; i < 8; ++i)
        for (int j = 0; j < 8; ++j) t[j][i] = r[i][j];
    for (int i = 0; i < 8; ++i) r[i] = loadu(t[i]);
}
#endif

// Eight rows of eight bytes at src[i] become eight columns: out[j] holds byte j of every row.
#if defined(__AVX2__)
INLINE void transpose_bytes(const __m128i (&r)[8], __m128i (&out)[4]) {
    __m128i a0 = _mm_unpacklo_epi8(r[0], r[1]);
    __m128i a1 = _mm_unpacklo_epi8(r[2], r[3]);
    __m128i a2 = _mm_unpacklo_epi8(r[4], r[5]);
    __m128i a3 = _mm_unpacklo_epi8(r[6], r[7]);
    __m128i b0 = _mm_unpacklo_epi16(a0, a1);
    __m128i b1 = _mm_unpackhi_epi16(a0, a1);
    __m128i b2 = _mm_unpacklo_epi16(a2, a3);
    __m128i b3 = _mm_unpackhi_epi16(a2, a3);
    out[0] = _mm_unpacklo_epi32(b0, b2);  // columns 0 and 1
    out[1] = _mm_unpackhi_epi32(b0, b2);
    out[2] = _mm_unpacklo_epi32(b1, b3);
    out[3] = _mm_unpackhi_epi32(b1, b3);
}
INLINE __m128i load_bytes(const uint8_t* p) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}
#endif

// lanes [count][8] -> rows [8][stride], zero-padded to a multiple of eight columns.
void lanes_to_rows(const float* lanes, size_t count, float* rows, size_t stride) {
    size_t k = 0;
    for (; k + 8 <= count; k += 8) {
        v8 r[8];
        for (int i = 0; i < 8; ++i) r[i] = load(lanes + (k + i) * LANES);
        transpose8(r);
        for (int i = 0; i < 8; ++i) storeu(rows + i * stride + k, r[i]);
    }
    if (k < count) {
        v8 r[8];
        for (size_t i = 0; i < 8; ++i) r[i] = k + i < count ? load(lanes + (k + i) * LANES) : splat(0);
        transpose8(r);
        for (int i = 0; i < 8; ++i) storeu(rows + i * stride + k, r[i]);
    }
}

// rows [8][stride] -> lanes [count][8]; rows are read only up to count.
void rows_to_lanes(const float* const (&row)[8], size_t count, float* lanes) {
    size_t k = 0;
    for (; k + 8 <= count; k += 8) {
        v8 r[8];
        for (int i = 0; i < 8; ++i) r[i] = loadu(row[i] + k);
        transpose8(r);
        for (int i = 0; i < 8; ++i) store(lanes + (k + i) * LANES, r[i]);
    }
    for (; k < count; ++k)
        for (int i = 0; i < 8; ++i) lanes[k * LANES + i] = row[i][k];
}

// lanes [c][y][x][8] -> eight samples in pixels layout; channels of the padding repeat channel 0.
void lanes_to_pixels(const Block& b, const float* lanes, float* pixels) {
    const size_t count = static_cast<size_t>(b.side) * b.side * b.step;
    const int32_t* src = b.pixel_source;
    for (size_t k = 0; k < count; k += 8) {
        v8 r[8];
        for (int i = 0; i < 8; ++i) r[i] = load(lanes + static_cast<size_t>(src[k + i]) * LANES);
        transpose8(r);
        for (int i = 0; i < 8; ++i) storeu(pixels + i * b.pixel_stride + k, r[i]);
    }
}

// pixels [p][step] -> channels [c][stride]; reads up to eight pixels beyond count.
void pixels_to_channels(const float* pixels, size_t count, int step, int channels, float* out, size_t stride) {
    for (size_t p = 0; p < count; p += 8)
        for (int c = 0; c < channels; c += 8) {
            v8 r[8];
            for (int i = 0; i < 8; ++i) r[i] = loadu(pixels + (p + i) * step + c);
            transpose8(r);
            const int m = channels - c < 8 ? channels - c : 8;
            for (int i = 0; i < m; ++i) storeu(out + (c + i) * stride + p, r[i]);
        }
}

// --------------------------------------------------------------------------------------- input

struct Data {
    const void* x;
    int is_u8;
    int64_t total;          // samples behind x
    const int64_t* index;   // null: start, start+1, ...
    int64_t start;
    int64_t at(int64_t i) const { return index ? index[i] : start + i; }
};

// Loads samples [first, first+8) of the batch; lanes beyond n repeat the last sample.
void load_group(const Plan& p, const Data& d, int64_t first, int64_t n, float* lanes) {
    const size_t area = static_cast<size_t>(p.side) * p.side;
    size_t at[8];
    for (int i = 0; i < 8; ++i) {
        const int64_t s = first + i < n ? first + i : n - 1;
        at[i] = static_cast<size_t>(d.at(s)) * p.sample_size;
    }
    if (d.is_u8) {
        const uint8_t* x = static_cast<const uint8_t*>(d.x);
        for (int c = 0; c < p.channels; ++c) {
            const float a = p.scale[c], b = p.shift[c];
            const uint8_t* row[8];
            for (int i = 0; i < 8; ++i) row[i] = x + at[i] + c * area;
            float* out = lanes + c * area * LANES;
            size_t k = 0;
#if defined(__AVX2__)
            const v8 va = splat(a), vb = splat(b);
            for (; k + 8 <= area; k += 8) {
                __m128i r[8], t[4];
                for (int i = 0; i < 8; ++i) r[i] = load_bytes(row[i] + k);
                transpose_bytes(r, t);
                for (int i = 0; i < 4; ++i) {
                    v8 lo = (v8)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(t[i]));
                    v8 hi = (v8)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(t[i], t[i])));
                    store(out + (k + 2 * i) * LANES, lo * va + vb);
                    store(out + (k + 2 * i + 1) * LANES, hi * va + vb);
                }
            }
#endif
            for (; k < area; ++k)
                for (int i = 0; i < 8; ++i) out[k * LANES + i] = static_cast<float>(row[i][k]) * a + b;
        }
        return;
    }
    const float* x = static_cast<const float*>(d.x);
    for (int c = 0; c < p.channels; ++c) {
        const float* row[8];
        for (int i = 0; i < 8; ++i) row[i] = x + at[i] + c * area;
        float* out = lanes + c * area * LANES;
        rows_to_lanes(row, area, out);
        if (p.normalise) {
            const v8 a = splat(p.scale_f32[c]), b = splat(p.shift_f32[c]);
            for (size_t k = 0; k < area; ++k) store(out + k * LANES, load(out + k * LANES) * a + b);
        }
    }
}

// --------------------------------------------------------------------------- convolution, forward

// Output channels are handled three at a time, the rest two at a time; one only if there is one.
INLINE int next_width(int left) { return left == 1 ? 1 : (left == 2 || left == 4) ? 2 : 3; }

void pack_forward(const Block& b, const float* theta, float* packed) {
    const float* w = theta + b.weight;
    const size_t taps = static_cast<size_t>(b.in) * TAPS;
    for (int o = 0; o < b.out;) {
        const int m = next_width(b.out - o);
        for (size_t t = 0; t < taps; ++t)
            for (int j = 0; j < m; ++j) *packed++ = w[(o + j) * taps + t];
        o += m;
    }
}

void pack_patch(const Block& b, const float* theta, float* patch) {
    const float* w = theta + b.weight;
    const size_t width = static_cast<size_t>(b.vecs) * 8;
    for (int o = 0; o < b.out; ++o)
        for (int i = 0; i < b.in; ++i)
            for (int ky = 0; ky < KERNEL; ++ky)
                for (int kx = 0; kx < KERNEL; ++kx)
                    patch[(o * KERNEL + ky) * width + kx * b.step + i] =
                        w[((static_cast<size_t>(o) * b.in + i) * KERNEL + ky) * KERNEL + kx];
}

void unpack_patch(const Block& b, const float* dpatch, float* grad) {
    float* w = grad + b.weight;
    const size_t width = static_cast<size_t>(b.vecs) * 8;
    for (int o = 0; o < b.out; ++o)
        for (int i = 0; i < b.in; ++i)
            for (int ky = 0; ky < KERNEL; ++ky)
                for (int kx = 0; kx < KERNEL; ++kx)
                    w[((static_cast<size_t>(o) * b.in + i) * KERNEL + ky) * KERNEL + kx] =
                        dpatch[(o * KERNEL + ky) * width + kx * b.step + i];
}

INLINE void store_codes(uint8_t* p, i8x codes) {
#if defined(__AVX2__)
    const __m256i c = (__m256i)codes;
    const __m128i h = _mm_packs_epi32(_mm256_castsi256_si128(c), _mm256_extracti128_si256(c, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(h, h));
#else
    for (int i = 0; i < 8; ++i) p[i] = static_cast<uint8_t>(codes[i]);
#endif
}

// One kernel row: five taps of M channels on the four outputs of a pool window. r0 and r1 are the input
// rows of the upper and the lower outputs.
template <int M>
INLINE void conv_row(v8 (&acc)[M][4], const float* w, const float* r0, const float* r1) {
    UNROLL
    for (int kx = 0; kx < KERNEL; ++kx) {
        forget_loads();
        v8 f[M];
        UNROLL
        for (int m = 0; m < M; ++m) f[m] = splat(w[kx * M + m]);
        v8 x = load(r0 + kx * LANES);
        UNROLL
        for (int m = 0; m < M; ++m) fma_into(acc[m][0], f[m], x);
        x = load(r0 + (kx + 1) * LANES);
        UNROLL
        for (int m = 0; m < M; ++m) fma_into(acc[m][1], f[m], x);
        x = load(r1 + kx * LANES);
        UNROLL
        for (int m = 0; m < M; ++m) fma_into(acc[m][2], f[m], x);
        x = load(r1 + (kx + 1) * LANES);
        UNROLL
        for (int m = 0; m < M; ++m) fma_into(acc[m][3], f[m], x);
    }
}

#if defined(__x86_64__) && defined(__AVX2__) && defined(__FMA__)
// Twelve accumulators, three weights and one input fill the sixteen registers exactly; compilers spill
// here, so the assignment is spelled out.
#define CONV_INPUT(at, a, b, c)                  \
    "vmovaps " at ", %%ymm15\n\t"                \
    "vfmadd231ps %%ymm15, %%ymm12, %" a "\n\t"   \
    "vfmadd231ps %%ymm15, %%ymm13, %" b "\n\t"   \
    "vfmadd231ps %%ymm15, %%ymm14, %" c "\n\t"
#define CONV_TAP(w0, w1, w2, x0, x1)                        \
    "vbroadcastss " w0 "(%[w]), %%ymm12\n\t"               \
    "vbroadcastss " w1 "(%[w]), %%ymm13\n\t"               \
    "vbroadcastss " w2 "(%[w]), %%ymm14\n\t"               \
    CONV_INPUT(x0 "(%[r0])", "[a0]", "[b0]", "[c0]")        \
    CONV_INPUT(x1 "(%[r0])", "[a1]", "[b1]", "[c1]")        \
    CONV_INPUT(x0 "(%[r1])", "[a2]", "[b2]", "[c2]")        \
    CONV_INPUT(x1 "(%[r1])", "[a3]", "[b3]", "[c3]")
template <>
INLINE void conv_row<3>(v8 (&acc)[3][4], const float* w, const float* r0, const float* r1) {
    __asm__ volatile(
        CONV_TAP("0", "4", "8", "0", "32")
        CONV_TAP("12", "16", "20", "32", "64")
        CONV_TAP("24", "28", "32", "64", "96")
        CONV_TAP("36", "40", "44", "96", "128")
        CONV_TAP("48", "52", "56", "128", "160")
        : [a0] "+x"(acc[0][0]), [a1] "+x"(acc[0][1]), [a2] "+x"(acc[0][2]), [a3] "+x"(acc[0][3]),
          [b0] "+x"(acc[1][0]), [b1] "+x"(acc[1][1]), [b2] "+x"(acc[1][2]), [b3] "+x"(acc[1][3]),
          [c0] "+x"(acc[2][0]), [c1] "+x"(acc[2][1]), [c2] "+x"(acc[2][2]), [c3] "+x"(acc[2][3])
        : [w] "r"(w), [r0] "r"(r0), [r1] "r"(r1)
        : "xmm12", "xmm13", "xmm14", "xmm15", "memory");
}
#endif

template <int M, bool KEEP>
void conv_channels(const Block& b, const float* in, const float* w, const float* bias, float* out,
                   uint8_t* arg) {
    const size_t row = static_cast<size_t>(b.side) * LANES;
    const size_t plane = row * b.side;
    for (int py = 0; py < b.pooled; ++py)
        for (int px = 0; px < b.pooled; ++px) {
            v8 acc[M][4];
            UNROLL
            for (int m = 0; m < M; ++m)
                UNROLL
                for (int q = 0; q < 4; ++q) acc[m][q] = splat(bias[m]);
            const float* corner = in + 2 * py * row + 2 * px * LANES;
            const float* wt = w;
            for (int i = 0; i < b.in; ++i, corner += plane) {
                const float* r0 = corner;
                for (int ky = 0; ky < KERNEL; ++ky, r0 += row, wt += KERNEL * M) {
                    conv_row<M>(acc, wt, r0, r0 + row);
                }
            }
            const size_t at = static_cast<size_t>(py) * b.pooled + px;
            UNROLL
            for (int m = 0; m < M; ++m) {
                // The first of equal maxima wins and a NaN always does, as in torch.
                v8 best = acc[m][0];
                i8x code = splat_i(0);
                UNROLL
                for (int q = 1; q < 4; ++q) {
                    const v8 v = acc[m][q];
                    const i8x take = (v > best) | (v != v);
                    best = take ? v : best;
                    if (KEEP) code = take ? splat_i(q) : code;
                }
                const i8x dead = best <= splat(0);
                best = dead ? splat(0) : best;
                store(out + (m * b.windows + at) * LANES, best);
                if (KEEP) store_codes(arg + (m * b.windows + at) * LANES, dead ? splat_i(DEAD) : code);
            }
        }
}

template <bool KEEP>
void conv_forward(const Block& b, const float* in, const float* packed, const float* theta, float* out,
                  uint8_t* arg) {
    const float* bias = theta + b.bias;
    for (int o = 0; o < b.out;) {
        const int m = next_width(b.out - o);
        const size_t at = o * b.windows * LANES;
        uint8_t* a = KEEP ? arg + at : nullptr;
        if (m == 3)
            conv_channels<3, KEEP>(b, in, packed, bias + o, out + at, a);
        else if (m == 2)
            conv_channels<2, KEEP>(b, in, packed, bias + o, out + at, a);
        else
            conv_channels<1, KEEP>(b, in, packed, bias + o, out + at, a);
        packed += static_cast<size_t>(b.in) * TAPS * m;
        o += m;
    }
}

// codes [out][window][8] -> [8][out][windows8], the padding marked dead.
void split_codes(const Block& b, const uint8_t* codes, uint8_t* split) {
    const size_t sample = b.out * b.windows8;
    for (int o = 0; o < b.out; ++o) {
        const uint8_t* src = codes + o * b.windows * LANES;
        uint8_t* dst = split + o * b.windows8;
        size_t p = 0;
#if defined(__AVX2__)
        for (; p + 8 <= b.windows; p += 8) {
            __m128i r[8], t[4];
            for (int i = 0; i < 8; ++i) r[i] = load_bytes(src + (p + i) * LANES);
            transpose_bytes(r, t);
            for (int i = 0; i < 4; ++i) {
                _mm_storel_epi64(reinterpret_cast<__m128i*>(dst + 2 * i * sample + p), t[i]);
                _mm_storel_epi64(reinterpret_cast<__m128i*>(dst + (2 * i + 1) * sample + p),
                                 _mm_unpackhi_epi64(t[i], t[i]));
            }
        }
#endif
        for (; p < b.windows8; ++p)
            for (int i = 0; i < 8; ++i) dst[i * sample + p] = p < b.windows ? src[p * LANES + i] : DEAD;
    }
}

// -------------------------------------------------------------------------- convolution, backward

#if defined(__AVX2__)
// Lane order that moves the lanes named by an eight-bit mask to the front.
struct Compress {
    uint64_t order[256];
    constexpr Compress() : order() {
        for (int mask = 0; mask < 256; ++mask) {
            uint64_t packed = 0;
            int n = 0;
            for (int bit = 0; bit < 8; ++bit)
                if (mask >> bit & 1) packed |= static_cast<uint64_t>(bit) << (8 * n++);
            order[mask] = packed;
        }
    }
};
constexpr Compress COMPRESS{};
#endif

// Lists the windows of one channel of one sample that carry a gradient; returns how many there are and
// adds their gradients to sum.
INLINE int collect(const Block& b, const float* g, const uint8_t* code, float* list_g, int32_t* list_at, v8& sum) {
    const int32_t step[4] = {0, b.step, b.side * b.step, (b.side + 1) * b.step};
    int n = 0;
#if defined(__AVX2__)
    const __m256i steps = _mm256_setr_epi32(step[0], step[1], step[2], step[3], 0, 0, 0, 0);
    for (size_t p = 0; p < b.windows8; p += 8) {
        const __m256i c = _mm256_cvtepu8_epi32(load_bytes(code + p));
        const __m256 v = _mm256_loadu_ps(g + p);
        const __m256 live = _mm256_and_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(DEAD), c)),
                                          _mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_NEQ_UQ));
        const unsigned mask = static_cast<unsigned>(_mm256_movemask_ps(live));
        const __m256i base = _mm256_load_si256(reinterpret_cast<const __m256i*>(b.window_offset.data + p));
        const __m256i at = _mm256_add_epi32(base, _mm256_permutevar8x32_epi32(steps, c));
        const __m256i order = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(COMPRESS.order[mask])));
        _mm256_storeu_ps(list_g + n, _mm256_permutevar8x32_ps(v, order));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(list_at + n), _mm256_permutevar8x32_epi32(at, order));
        n += __builtin_popcount(mask);
        sum += (v8)_mm256_and_ps(live, v);
    }
#else
    for (size_t p = 0; p < b.windows; ++p) {
        list_g[n] = g[p];
        list_at[n] = b.window_offset[p] + step[code[p] & 3];
        if (code[p] >= DEAD || !(g[p] != 0)) continue;
        sum[p % 8] += g[p];
        ++n;
    }
#endif
    return n;
}

// dpatch rows [R][V vectors] += sum over the list of g * patch of the input.
template <int R, int V>
INLINE void add_patches(const float* g, const int32_t* at, int n, const float* src, size_t row, float* dst,
                        size_t width) {
    v8 acc[R][V];
    UNROLL
    for (int r = 0; r < R; ++r)
        UNROLL
        for (int v = 0; v < V; ++v) acc[r][v] = load(dst + r * width + v * 8);
    for (int e = 0; e < n; ++e) {
        const v8 s = splat(g[e]);
        const float* p = src + at[e];
        UNROLL
        for (int r = 0; r < R; ++r) {
            UNROLL
            for (int v = 0; v < V; ++v) fma_load(acc[r][v], s, p + v * 8);
            if (r + 1 < R) p = advance(p, row);
        }
    }
    UNROLL
    for (int r = 0; r < R; ++r)
        UNROLL
        for (int v = 0; v < V; ++v) store(dst + r * width + v * 8, acc[r][v]);
}

void weight_gradient(const Block& b, const float* g, const int32_t* at, int n, const float* pixels,
                     float* dpatch) {
    const size_t row = static_cast<size_t>(b.side) * b.step, width = static_cast<size_t>(b.vecs) * 8;
    int v = 0;
    for (; b.vecs - v >= 5; v += 5) {
        add_patches<3, 5>(g, at, n, pixels + v * 8, row, dpatch + v * 8, width);
        add_patches<2, 5>(g, at, n, pixels + v * 8 + 3 * row, row, dpatch + v * 8 + 3 * width, width);
    }
    const float* src = pixels + v * 8;
    float* dst = dpatch + v * 8;
    switch (b.vecs - v) {
        case 4:
            add_patches<3, 4>(g, at, n, src, row, dst, width);
            add_patches<2, 4>(g, at, n, src + 3 * row, row, dst + 3 * width, width);
            break;
        case 3:
            add_patches<3, 3>(g, at, n, src, row, dst, width);
            add_patches<2, 3>(g, at, n, src + 3 * row, row, dst + 3 * width, width);
            break;
        case 2: add_patches<5, 2>(g, at, n, src, row, dst, width); break;
        case 1: add_patches<5, 1>(g, at, n, src, row, dst, width); break;
        default: break;
    }
}

// dpixels patches += g * weights. The padding of a patch row is zero, so overruns add nothing.
template <int V>
INLINE void spread_patches(const float* g, const int32_t* at, int n, const float* patch, size_t row,
                           float* dpixels, size_t width) {
    // As much of the weights as fits stays in registers: the loop is bound by loads and stores.
    constexpr int ALL = KERNEL * V, KEPT = ALL < 12 ? ALL : 12;
    v8 kept[KEPT];
    UNROLL
    for (int k = 0; k < KEPT; ++k) kept[k] = load(patch + (k / V) * width + (k % V) * 8);
    for (int e = 0; e < n; ++e) {
        const v8 s = splat(g[e]);
        float* p = dpixels + at[e];
        const float* w = patch;
        UNROLL
        for (int k = 0; k < ALL; ++k) {
            v8 sum = loadu(p + (k % V) * 8);
            if (k < KEPT)
                fma_into(sum, s, kept[k < KEPT ? k : 0]);
            else
                fma_load(sum, s, w + (k % V) * 8);
            storeu(p + (k % V) * 8, sum);
            if (k % V == V - 1 && k + 1 < ALL) {
                p = const_cast<float*>(advance(p, row));
                w = advance(w, width);
            }
        }
    }
}

void input_gradient(const Block& b, const float* g, const int32_t* at, int n, const float* patch,
                    float* dpixels) {
    const size_t row = static_cast<size_t>(b.side) * b.step, width = static_cast<size_t>(b.vecs) * 8;
    int v = 0;
    for (; b.vecs - v >= 5; v += 5) spread_patches<5>(g, at, n, patch + v * 8, row, dpixels + v * 8, width);
    switch (b.vecs - v) {
        case 4: spread_patches<4>(g, at, n, patch + v * 8, row, dpixels + v * 8, width); break;
        case 3: spread_patches<3>(g, at, n, patch + v * 8, row, dpixels + v * 8, width); break;
        case 2: spread_patches<2>(g, at, n, patch + v * 8, row, dpixels + v * 8, width); break;
        case 1: spread_patches<1>(g, at, n, patch + v * 8, row, dpixels + v * 8, width); break;
        default: break;
    }
}

// ------------------------------------------------------------------------------------ dense layers

// c[m][n] += sum_t a[t*ta + m*tm] * b[n*bn + t*tb ...]
template <int M, int N>
INLINE void tile(size_t steps, const float* a, size_t ta, size_t tm, const float* b, size_t tb, size_t bn,
                 v8 (&c)[M][N]) {
    for (size_t t = 0; t < steps; ++t, a += ta, b += tb) {
        v8 x[N];
        UNROLL
        for (int n = 0; n < N; ++n) x[n] = load(b + n * bn);
        UNROLL
        for (int m = 0; m < M; ++m) {
            const v8 w = splat(a[m * tm]);
            UNROLL
            for (int n = 0; n < N; ++n) fma_into(c[m][n], w, x[n]);
        }
    }
}

template <int M, int N>
void forward_tile(const Dense& l, const float* w, const float* bias, const float* in, float* out, bool relu) {
    v8 c[M][N];
    UNROLL
    for (int m = 0; m < M; ++m)
        UNROLL
        for (int n = 0; n < N; ++n) c[m][n] = splat(bias[m]);
    tile<M, N>(l.in, w, 1, l.in, in, LANES, static_cast<size_t>(l.in) * LANES, c);
    UNROLL
    for (int m = 0; m < M; ++m)
        UNROLL
        for (int n = 0; n < N; ++n) {
            v8 v = c[m][n];
            if (relu) v = v <= splat(0) ? splat(0) : v;
            store(out + static_cast<size_t>(n) * l.out * LANES + m * LANES, v);
        }
}

template <int M, int N>
void input_tile(const Dense& l, const float* w, const float* d, float* out) {
    v8 c[M][N];
    UNROLL
    for (int m = 0; m < M; ++m)
        UNROLL
        for (int n = 0; n < N; ++n) c[m][n] = splat(0);
    tile<M, N>(l.out, w, l.in, 1, d, LANES, static_cast<size_t>(l.out) * LANES, c);
    UNROLL
    for (int m = 0; m < M; ++m)
        UNROLL
        for (int n = 0; n < N; ++n) store(out + static_cast<size_t>(n) * l.in * LANES + m * LANES, c[m][n]);
}

void store_part(float* p, v8 a, int count) {
    float all[8];
    storeu(all, a);
    for (int i = 0; i < count; ++i) p[i] = all[i];
}

template <int M, int N>
void weight_tile(const Dense& l, size_t samples, const float* d, size_t ds, const float* x, size_t xs,
                 float* grad, int columns) {
    v8 c[M][N];
    UNROLL
    for (int m = 0; m < M; ++m)
        UNROLL
        for (int n = 0; n < N; ++n) c[m][n] = splat(0);
    tile<M, N>(samples, d, ds, 1, x, xs, 8, c);
    UNROLL
    for (int m = 0; m < M; ++m)
        UNROLL
        for (int n = 0; n < N; ++n) {
            float* g = grad + static_cast<size_t>(m) * l.in + n * 8;
            if (columns >= (n + 1) * 8)
                storeu(g, c[m][n]);
            else
                store_part(g, c[m][n], columns - n * 8);
        }
}

// Runs f<M, N>(row, group) over a grid of rows x groups in tiles of at most 6 x 2.
#define TILE_ROWS(F, N, M, ...)                 \
    switch (M) {                                \
        case 6: F<6, N>(__VA_ARGS__); break;    \
        case 5: F<5, N>(__VA_ARGS__); break;    \
        case 4: F<4, N>(__VA_ARGS__); break;    \
        case 3: F<3, N>(__VA_ARGS__); break;    \
        case 2: F<2, N>(__VA_ARGS__); break;    \
        default: F<1, N>(__VA_ARGS__); break;   \
    }

// in [groups][l.in][8] -> out [groups][l.out][8]
void dense_forward(const Dense& l, const float* params, const float* in, float* out, size_t groups, bool relu) {
    const size_t gi = static_cast<size_t>(l.in) * LANES, go = static_cast<size_t>(l.out) * LANES;
    for (int o = 0; o < l.out; o += 6) {
        const int m = l.out - o < 6 ? l.out - o : 6;
        const float* w = params + l.weight + static_cast<size_t>(o) * l.in;
        const float* bias = params + l.bias + o;
        size_t g = 0;
        for (; g + 2 <= groups; g += 2)
            TILE_ROWS(forward_tile, 2, m, l, w, bias, in + g * gi, out + g * go + o * LANES, relu)
        if (g < groups) TILE_ROWS(forward_tile, 1, m, l, w, bias, in + g * gi, out + g * go + o * LANES, relu)
    }
}

// d [groups][l.out][8] -> dx [groups][l.in][8]
void dense_input_gradient(const Dense& l, const float* params, const float* d, float* dx, size_t groups) {
    const size_t gi = static_cast<size_t>(l.in) * LANES, go = static_cast<size_t>(l.out) * LANES;
    for (int k = 0; k < l.in; k += 6) {
        const int m = l.in - k < 6 ? l.in - k : 6;
        const float* w = params + l.weight + k;
        size_t g = 0;
        for (; g + 2 <= groups; g += 2)
            TILE_ROWS(input_tile, 2, m, l, w, d + g * go, dx + g * gi + static_cast<size_t>(k) * LANES)
        if (g < groups) TILE_ROWS(input_tile, 1, m, l, w, d + g * go, dx + g * gi + static_cast<size_t>(k) * LANES)
    }
}

void dense_weight_gradient(const Dense& l, Workspace& ws, const float* x, const float* d, size_t groups,
                           float* grad) {
    const size_t xs = up8(l.in), ds = up8(l.out), samples = groups * LANES;
    ws.rows_x.need(samples * xs);
    ws.rows_d.need(samples * ds);
    for (size_t g = 0; g < groups; ++g) {
        lanes_to_rows(x + g * l.in * LANES, l.in, ws.rows_x + g * LANES * xs, xs);
        lanes_to_rows(d + g * l.out * LANES, l.out, ws.rows_d + g * LANES * ds, ds);
    }
    for (int k = 0; k < l.in; k += 16) {
        const int columns = l.in - k < 16 ? l.in - k : 16;
        for (int o = 0; o < l.out; o += 6) {
            const int m = l.out - o < 6 ? l.out - o : 6;
            float* out = grad + l.weight + static_cast<size_t>(o) * l.in + k;
            if (columns > 8)
                TILE_ROWS(weight_tile, 2, m, l, samples, ws.rows_d + o, ds, ws.rows_x + k, xs, out, columns)
            else
                TILE_ROWS(weight_tile, 1, m, l, samples, ws.rows_d + o, ds, ws.rows_x + k, xs, out, columns)
        }
    }
    float* bias = grad + l.bias;
    for (int o = 0; o < l.out; ++o) {
        v8 sum = splat(0);
        for (size_t g = 0; g < groups; ++g) sum += load(d + (g * l.out + o) * LANES);
        bias[o] = total(sum);
    }
}

void mask_inactive(const float* act, float* d, size_t vectors) {
    for (size_t k = 0; k < vectors; ++k) {
        const v8 a = load(act + k * LANES);
        store(d + k * LANES, a <= splat(0) ? splat(0) : load(d + k * LANES));
    }
}

// --------------------------------------------------------------------------------- whole network

void prepare_tape(const Plan& p, Tape& t, size_t groups, bool keep) {
    for (int b = 0; b < p.blocks; ++b) {
        const Block& k = p.block[b];
        t.pooled[b].need(groups * k.out_lanes);
        if (keep) t.arg[b].need(groups * LANES * k.out * k.windows8);
    }
    for (int l = 0; l < p.dense; ++l) t.dense[l].need(groups * p.layer[l].out * LANES);
}

void pack_weights(const Plan& p, Workspace& ws, const float* theta) {
    for (int b = 0; b < p.blocks; ++b) {
        const Block& k = p.block[b];
        ws.packed[b].need(static_cast<size_t>(k.out) * k.in * TAPS);
        pack_forward(k, theta, ws.packed[b]);
    }
    ws.input.need(p.block[0].in_lanes);
}

// Forward pass of the extractor over batch positions [first, first+n); weights are packed already.
// With keep the arg-max codes are kept for a backward pass. Returns the features in lanes.
const float* extract(const Plan& p, Workspace& ws, Tape& t, const float* theta, const Data& d, int64_t first,
                     int64_t n, bool keep) {
    const size_t groups = static_cast<size_t>((n + LANES - 1) / LANES);
    prepare_tape(p, t, groups, keep);
    if (keep)
        for (int b = 0; b < p.blocks; ++b) ws.arg.need(p.block[b].out_lanes);
    for (size_t g = 0; g < groups; ++g) {
        load_group(p, d, first + static_cast<int64_t>(g) * LANES, first + n, ws.input);
        const float* in = ws.input;
        for (int b = 0; b < p.blocks; ++b) {
            const Block& k = p.block[b];
            float* out = t.pooled[b] + g * k.out_lanes;
            if (keep) {
                conv_forward<true>(k, in, ws.packed[b], theta, out, ws.arg);
                split_codes(k, ws.arg, t.arg[b] + g * LANES * k.out * k.windows8);
            } else {
                conv_forward<false>(k, in, ws.packed[b], theta, out, nullptr);
            }
            in = out;
        }
    }
    const float* in = t.pooled[p.blocks - 1];
    for (int l = 0; l < p.dense; ++l) {
        dense_forward(p.layer[l], theta, in, t.dense[l], groups, true);
        in = t.dense[l];
    }
    t.samples = n;
    return in;
}

// Gradient of theta from the gradient of the features (lanes, in ws.grad_a, destroyed).
void extract_backward(const Plan& p, Workspace& ws, const Tape& t, const float* theta, const Data& data,
                      int64_t first, int64_t n, float* grad) {
    const size_t groups = static_cast<size_t>((n + LANES - 1) / LANES);
    float* d = ws.grad_a;
    float* other = ws.grad_b;
    for (int l = p.dense - 1; l >= 0; --l) {
        const Dense& k = p.layer[l];
        const float* in = l ? t.dense[l - 1] : t.pooled[p.blocks - 1];
        mask_inactive(t.dense[l], d, groups * k.out);
        dense_weight_gradient(k, ws, in, d, groups, grad);
        dense_input_gradient(k, theta, d, other, groups);
        float* swap = d;
        d = other;
        other = swap;
    }
    const Block& top = p.block[p.blocks - 1];
    size_t channels = 0, list = 0;
    for (int b = 0; b < p.blocks; ++b) {
        const Block& k = p.block[b];
        const size_t size = static_cast<size_t>(k.out) * KERNEL * k.vecs * 8;
        ws.dpatch[b].need(size);
        std::memset(ws.dpatch[b].data, 0, size * sizeof(float));
        ws.dbias[b].need(static_cast<size_t>(k.out) * LANES);
        std::memset(ws.dbias[b].data, 0, k.out * LANES * sizeof(float));
        ws.pixels[b].need(k.pixel_stride * LANES);
        if (b) {
            ws.patch[b].need(size);
            pack_patch(k, theta, ws.patch[b]);
            ws.dpixels[b].need(k.pixel_stride);
        }
        const size_t c = k.out * k.windows8;
        channels = channels < c ? c : channels;
        list = list < k.windows8 ? k.windows8 : list;
    }
    const size_t top_sample = top.out * top.windows8;
    ws.dtop.need(top_sample * LANES);
    ws.dchannels.need(channels);
    ws.list_g.need(list + 8);
    ws.list_at.need(list + 8);
    for (size_t g = 0; g < groups; ++g) {
        for (int o = 0; o < top.out; ++o)
            lanes_to_rows(d + g * top.out_lanes + o * top.windows * LANES, top.windows,
                          ws.dtop + o * top.windows8, top_sample);
        load_group(p, data, first + static_cast<int64_t>(g) * LANES, first + n, ws.input);
        lanes_to_pixels(p.block[0], ws.input, ws.pixels[0]);
        for (int b = 1; b < p.blocks; ++b)
            lanes_to_pixels(p.block[b], t.pooled[b - 1] + g * p.block[b].in_lanes, ws.pixels[b]);
        const int live = n - static_cast<int64_t>(g) * LANES < LANES ? static_cast<int>(n % LANES) : LANES;
        for (int s = 0; s < live; ++s) {
            const float* dout = ws.dtop + s * top_sample;
            for (int b = p.blocks - 1; b >= 0; --b) {
                const Block& k = p.block[b];
                const uint8_t* code = t.arg[b] + (g * LANES + s) * k.out * k.windows8;
                const float* pixels = ws.pixels[b] + s * k.pixel_stride;
                const size_t patch = static_cast<size_t>(KERNEL) * k.vecs * 8;
                if (b) std::memset(ws.dpixels[b].data, 0, k.pixel_stride * sizeof(float));
                for (int o = 0; o < k.out; ++o, dout += k.windows8, code += k.windows8) {
                    v8 sum = load(ws.dbias[b] + o * LANES);
                    const int found = collect(k, dout, code, ws.list_g, ws.list_at, sum);
                    store(ws.dbias[b] + o * LANES, sum);
                    weight_gradient(k, ws.list_g, ws.list_at, found, pixels, ws.dpatch[b] + o * patch);
                    if (b) input_gradient(k, ws.list_g, ws.list_at, found, ws.patch[b] + o * patch, ws.dpixels[b]);
                }
                if (b) {
                    const Block& below = p.block[b - 1];
                    pixels_to_channels(ws.dpixels[b], below.windows, k.step, k.in, ws.dchannels, below.windows8);
                    dout = ws.dchannels;
                }
            }
        }
    }
    for (int b = 0; b < p.blocks; ++b) {
        const Block& k = p.block[b];
        unpack_patch(k, ws.dpatch[b], grad);
        for (int o = 0; o < k.out; ++o) grad[k.bias + o] = total(load(ws.dbias[b] + o * LANES));
    }
}

void need_gradients(const Plan& p, Workspace& ws, size_t groups) {
    size_t widest = p.features > p.classes ? p.features : p.classes;
    for (int l = 0; l < p.dense; ++l) widest = widest < size_t(p.layer[l].in) ? p.layer[l].in : widest;
    ws.grad_a.need(groups * widest * LANES);
    ws.grad_b.need(groups * widest * LANES);
}

// ------------------------------------------------------------------------------------ loss and SGD

// exp(x) for x <= 0 to about one unit in the last place; NaN stays NaN.
INLINE v8 exp_negative(v8 x) {
    const v8 floor = splat(-87.0f);
    x = x < floor ? floor : x;
    const v8 magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
    const v8 shifted = x * splat(1.44269504088896341f) + magic;
    const v8 k = shifted - magic;
    v8 r = x - k * splat(0.693145751953125f);
    r = r - k * splat(1.42860682030941723e-6f);
    v8 q = splat(1.0f / 5040);
    q = q * r + splat(1.0f / 720);
    q = q * r + splat(1.0f / 120);
    q = q * r + splat(1.0f / 24);
    q = q * r + splat(1.0f / 6);
    q = q * r + splat(0.5f);
    q = q * (r * r) + r;
    q = q + splat(1.0f);
    i8x bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + splat_i(127 - 0x4B400000)) << 23;
    v8 power;
    std::memcpy(&power, &bits, sizeof power);
    return x != x ? x : q * power;
}

enum Rule : int32_t { SGD = 0, NESTEROV = 1, ADAM = 2, ADAMW = 3 };

// What a training descends beside terms, and how it moves. Mirrored in packed_recipe.py.
struct Recipe {
    const float* target;        // [samples]: squared error of the only output, in place of cross-entropy; null: none
    const float* class_weight;  // [classes]: what the loss of a sample of this class is multiplied by; null: 1
    double first, second;       // Adam: decay of both moments
    int32_t rule;
    float smoothing;            // share of every label that is spread over all classes
    float clip;                 // largest joint norm of all gradients; 0: any
    float decay;                // of weights
    float momentum;             // SGD
    float eps;                  // Adam

    bool plain_loss() const { return !target && !class_weight && smoothing == 0; }
};

// Logits (lanes) become the gradient of the mean cross-entropy; returns the sum of the losses. Plain: without
// weights and smoothing.
template <bool PLAIN>
double cross_entropy(const Recipe& r, int classes, float* logits, const int64_t* label, int64_t n) {
    double total = 0;
    const float share = 1.0f / static_cast<float>(n);
    const float kept = 1 - r.smoothing, spread = r.smoothing / static_cast<float>(classes);
    for (int64_t first = 0; first < n; first += LANES, logits += static_cast<size_t>(classes) * LANES) {
        v8 top = load(logits);
        for (int c = 1; c < classes; ++c) {
            const v8 v = load(logits + c * LANES);
            top = v > top ? v : top;
        }
        float picked[8];
        const int live = n - first < LANES ? static_cast<int>(n - first) : LANES;
        for (int i = 0; i < live; ++i) picked[i] = logits[label[first + i] * LANES + i] - top[i];
        v8 sum = splat(0), all = splat(0);
        for (int c = 0; c < classes; ++c) {
            const v8 v = load(logits + c * LANES) - top;
            const v8 e = exp_negative(v);
            sum += e;
            if (!PLAIN) all += v;
            store(logits + c * LANES, e);
        }
        if (PLAIN) {
            v8 factor = splat(0);
            for (int i = 0; i < live; ++i) {
                total += static_cast<double>(std::log(sum[i]) - picked[i]);
                factor[i] = share / sum[i];
            }
            for (int c = 0; c < classes; ++c) store(logits + c * LANES, load(logits + c * LANES) * factor);
            for (int i = 0; i < live; ++i) logits[label[first + i] * LANES + i] -= share;
            continue;
        }
        v8 factor = splat(0), shares = splat(0);
        for (int i = 0; i < live; ++i) {
            const float weight = r.class_weight ? r.class_weight[label[first + i]] : 1;
            total += static_cast<double>(weight * (std::log(sum[i]) - kept * picked[i] - spread * all[i]));
            shares[i] = weight * share;
            factor[i] = shares[i] / sum[i];
        }
        for (int c = 0; c < classes; ++c)
            store(logits + c * LANES, load(logits + c * LANES) * factor - splat(spread) * shares);
        for (int i = 0; i < live; ++i) logits[label[first + i] * LANES + i] -= kept * shares[i];
    }
    return total;
}

// The same for squared errors; one output per sample.
double squared_error(const float* target, float* out, const int64_t* order, int64_t n) {
    double total = 0;
    const float share = 2.0f / static_cast<float>(n);
    const int64_t lanes = (n + LANES - 1) / LANES * LANES;
    for (int64_t i = 0; i < lanes; ++i) {
        const float gap = i < n ? out[i] - target[order[i]] : 0.0f;
        total += static_cast<double>(gap) * gap;
        out[i] = share * gap;
    }
    return total;
}

// The same for the loss of a recipe.
double loss_gradient(const Recipe& r, int classes, float* logits, const int64_t* order, const int64_t* label,
                     int64_t n) {
    if (r.target) return squared_error(r.target, logits, order, n);
    if (r.plain_loss()) return cross_entropy<true>(r, classes, logits, label, n);
    return cross_entropy<false>(r, classes, logits, label, n);
}

// A vector that is trained. Its state is the velocity; with Adam both moments, then the number of steps.
struct Part {
    size_t size;
    float *w, *state, *grad;
    const float* anchor;  // null: none
    float lr;
};

struct Optimiser {
    float momentum, decay, rho;
};

void sgd(size_t size, float* __restrict w, float* __restrict v, const float* __restrict g,
         const float* __restrict anchor, float lr, const Optimiser& o) {
    const float m = o.momentum, wd = o.decay, rho = o.rho;
    if (anchor && rho != 0) {
        for (size_t k = 0; k < size; ++k) {
            const float step = m * v[k] + (g[k] + wd * w[k] + rho * (w[k] - anchor[k]));
            v[k] = step;
            w[k] -= lr * step;
        }
    } else if (wd != 0) {
        for (size_t k = 0; k < size; ++k) {
            const float step = m * v[k] + (g[k] + wd * w[k]);
            v[k] = step;
            w[k] -= lr * step;
        }
    } else {
        for (size_t k = 0; k < size; ++k) {
            const float step = m * v[k] + g[k];
            v[k] = step;
            w[k] -= lr * step;
        }
    }
}

void nesterov(const Part& part, const Recipe& r) {
    float *__restrict w = part.w, *__restrict v = part.state;
    const float* __restrict g = part.grad;
    const float m = r.momentum, wd = r.decay, lr = part.lr;
    for (size_t k = 0; k < part.size; ++k) {
        const float slope = g[k] + wd * w[k];
        v[k] = m * v[k] + slope;
        w[k] -= lr * (slope + m * v[k]);
    }
}

// Adam adds the decay to the gradient, AdamW to the step.
void adam(const Part& part, const Recipe& r) {
    float *__restrict w = part.w, *__restrict mean = part.state, *__restrict square = part.state + part.size;
    const float* __restrict g = part.grad;
    const float steps = part.state[2 * part.size] += 1;
    const float a = static_cast<float>(1 - r.first), b = static_cast<float>(1 - r.second);
    const float keep = static_cast<float>(r.second);
    const float by_mean = -1 / static_cast<float>(std::expm1(steps * std::log(r.first)));
    const float by_square = -1 / static_cast<float>(std::expm1(steps * std::log(r.second)));
    const float inside = r.rule == ADAM ? r.decay : 0, beside = r.rule == ADAM ? 0 : r.decay;
    const float eps = r.eps, lr = part.lr;
    for (size_t k = 0; k < part.size; ++k) {
        const float slope = g[k] + inside * w[k];
        mean[k] += a * (slope - mean[k]);
        square[k] = keep * square[k] + b * (slope * slope);
        w[k] -= lr * (mean[k] * by_mean / (std::sqrt(square[k] * by_square) + eps) + beside * w[k]);
    }
}

double dot(const float* a, const float* b, size_t size) {
    constexpr size_t BLOCK = 4096;
    double sum = 0;
    for (size_t from = 0; from < size; from += BLOCK) {
        const size_t stop = size - from < BLOCK ? size : from + BLOCK;
        v8 part[4] = {splat(0), splat(0), splat(0), splat(0)};
        size_t k = from;
        for (; k + 32 <= stop; k += 32)
            UNROLL
            for (int i = 0; i < 4; ++i) fma_into(part[i], loadu(a + k + 8 * i), loadu(b + k + 8 * i));
        float rest = 0;
        for (; k < stop; ++k) rest += a[k] * b[k];
        sum += total((part[0] + part[1]) + (part[2] + part[3])) + rest;
    }
    return sum;
}

// The pull to the anchor becomes part of the gradient.
void add_pull(Part& part, float rho) {
    if (part.anchor && rho != 0)
        for (size_t k = 0; k < part.size; ++k) part.grad[k] += rho * (part.w[k] - part.anchor[k]);
    part.anchor = nullptr;
}

// All gradients are scaled together, so that their joint norm is at most `most`.
void clip_gradients(float most, const Part* parts, int count) {
    double square = 0;
    for (int i = 0; i < count; ++i) square += dot(parts[i].grad, parts[i].grad, parts[i].size);
    const double scale = most / (std::sqrt(square) + 1e-6);
    if (scale >= 1) return;
    for (int i = 0; i < count; ++i)
        for (size_t k = 0; k < parts[i].size; ++k) parts[i].grad[k] *= static_cast<float>(scale);
}

// One step of all parts.
void move(const Recipe& r, float rho, Part* parts, int count) {
    const bool plain = r.rule == SGD && r.clip == 0;  // adds the pull while it moves
    if (!plain)
        for (int i = 0; i < count; ++i) add_pull(parts[i], rho);
    if (r.clip > 0) clip_gradients(r.clip, parts, count);
    for (int i = 0; i < count; ++i) {
        const Part& p = parts[i];
        if (r.rule == SGD)
            sgd(p.size, p.w, p.state, p.grad, p.anchor, p.lr, Optimiser{r.momentum, r.decay, rho});
        else if (r.rule == NESTEROV)
            nesterov(p, r);
        else
            adam(p, r);
    }
}

// ----------------------------------------------------------------------------- terms beside cross-entropy

// What a loss has beside cross-entropy; a pointer that is null leaves its term out. Mirrored in terms.py.
// The extra vector is trained along with theta and phi: the shift, or the weights of the mixture.
struct Terms {
    float* extra;
    float* v_extra;
    const float* target;         // [classes][d]: pull * mean over batch and d of (z - target_y)^2
    const float* present;        // [classes]: only for classes where this is positive
    float* mean;                 // [d] running mean of z: (1 - mu) mean + mu batch mean
    const float* mean_target;    // [d]: mean_pull / 2 * mean over d of (mean - mean_target)^2
    const float* teacher_theta;
    const float* teacher_phi;    // null: features are compared, by teach * MMD^2; else answers, by cross-entropy
    const float* others;         // [models][theta_size + phi_size], mixed with the trained model by the extra vector
    const float* origin;         // [models + 1]: stiffness / 2 * |extra - origin|^2
    int64_t models;              // -1: no mixture
    int32_t train_extra;
    int32_t shifts;              // the head sees z + shift_scale * extra
    int32_t bandwidths;          // of MMD, each half of the one before
    float lr_extra;
    float share;                 // of the cross-entropy
    float pull;
    float shift_scale;
    float mu, mean_pull;
    float teach;
    float temperature;           // of the teacher's answers
    float widest, floor;         // MMD: the largest bandwidth as a multiple of the mean gap, and the least mean gap
    float stiffness;

    bool mixes() const { return models >= 0; }
    size_t extra_size(const Plan& p) const { return mixes() ? static_cast<size_t>(models) + 1 : p.features; }
};

// One for the lanes of a group that hold a sample of the batch, else zero.
INLINE v8 live_lanes(int64_t n, size_t group) {
    if (n >= static_cast<int64_t>(group + 1) * LANES) return splat(1);
    v8 live;
    for (int i = 0; i < LANES; ++i) live[i] = static_cast<int64_t>(group) * LANES + i < n ? 1.0f : 0.0f;
    return live;
}

void scale_vectors(float* a, size_t vectors, float by) {
    for (size_t k = 0; k < vectors; ++k) store(a + k * LANES, load(a + k * LANES) * splat(by));
}

// z + scale * shift, lanes
void add_shift(const float* z, const float* shift, float scale, int d, size_t groups, float* out) {
    for (size_t g = 0; g < groups; ++g)
        for (int k = 0; k < d; ++k)
            store(out + (g * d + k) * LANES, load(z + (g * d + k) * LANES) + splat(scale * shift[k]));
}

void shift_gradient(const float* dz, float scale, int d, size_t groups, float* grad) {
    for (int k = 0; k < d; ++k) {
        v8 sum = splat(0);
        for (size_t g = 0; g < groups; ++g) sum += load(dz + (g * d + k) * LANES);
        grad[k] = scale * total(sum);
    }
}

// Adds the gradient of the pull to the class targets to dz; returns its value.
double add_class_pull(const Terms& t, Workspace& ws, int d, const float* z, const int64_t* label, int64_t n,
                      float* dz) {
    const float step = 2.0f * t.pull / (static_cast<float>(n) * static_cast<float>(d));
    ws.targets.need(static_cast<size_t>(d) * LANES);
    double sum = 0;
    for (int64_t first = 0; first < n; first += LANES, z += d * LANES, dz += d * LANES) {
        const float* row[8];
        v8 on = splat(0);
        for (int i = 0; i < LANES; ++i) {
            const int64_t y = label[first + i < n ? first + i : n - 1];
            row[i] = t.target + static_cast<size_t>(y) * d;
            on[i] = first + i < n && t.present[y] > 0 ? 1.0f : 0.0f;
        }
        rows_to_lanes(row, d, ws.targets);
        v8 square = splat(0);
        for (int k = 0; k < d; ++k) {
            const v8 gap = (load(z + k * LANES) - load(ws.targets + k * LANES)) * on;
            square += gap * gap;
            store(dz + k * LANES, load(dz + k * LANES) + gap * splat(step));
        }
        sum += total(square);
    }
    return t.pull * sum / (static_cast<double>(n) * d);
}

// Moves the running mean, adds the gradient of its pull to dz; returns its value.
double add_mean_pull(const Terms& t, int d, const float* z, int64_t n, size_t groups, float* dz) {
    double sum = 0;
    for (int k = 0; k < d; ++k) {
        v8 all = splat(0);
        for (size_t g = 0; g < groups; ++g) all += load(z + (g * d + k) * LANES) * live_lanes(n, g);
        t.mean[k] = (1 - t.mu) * t.mean[k] + t.mu * (total(all) / static_cast<float>(n));
        const float gap = t.mean[k] - t.mean_target[k];
        sum += static_cast<double>(gap) * gap;
        const float step = t.mean_pull * gap * t.mu / (static_cast<float>(d) * static_cast<float>(n));
        for (size_t g = 0; g < groups; ++g) {
            float* at = dz + (g * d + k) * LANES;
            store(at, load(at) + splat(step) * live_lanes(n, g));
        }
    }
    return 0.5 * t.mean_pull * sum / d;
}

// gap[g][j][8] = squared distance of row j to the eight samples of group g; rows is a multiple of four.
void squared_distances(const float* lanes, size_t groups, const float* rows, size_t count, size_t stride, int d,
                       float* gap) {
    for (size_t g = 0; g < groups; ++g)
        for (size_t j = 0; j < count; j += 4) {
            const float* r = rows + j * stride;
            v8 sum[4] = {splat(0), splat(0), splat(0), splat(0)};
            for (int k = 0; k < d; ++k) {
                const v8 x = load(lanes + (g * d + k) * LANES);
                UNROLL
                for (int i = 0; i < 4; ++i) {
                    const v8 e = x - splat(r[i * stride + k]);
                    fma_into(sum[i], e, e);
                }
            }
            UNROLL
            for (int i = 0; i < 4; ++i) store(gap + (g * count + j + i) * LANES, sum[i]);
        }
}

// Sum over the samples that exist.
double sum_gaps(const float* gap, size_t groups, size_t count, int64_t n) {
    double sum = 0;
    for (size_t g = 0; g < groups; ++g) {
        v8 part = splat(0);
        for (int64_t j = 0; j < n; ++j) part += load(gap + (g * count + j) * LANES);
        sum += total(part * live_lanes(n, g));
    }
    return sum;
}

// Gaps become the slopes -dk/dgap of the sum of kernels k; returns the sum of k over the samples that exist.
double apply_kernels(const Terms& t, float width, float* gap, size_t groups, size_t count, int64_t n) {
    const float widest = 1.0f / (t.widest * width);
    double sum = 0;
    for (size_t g = 0; g < groups; ++g) {
        v8 part = splat(0);
        for (int64_t j = 0; j < n; ++j) {
            float* at = gap + (g * count + j) * LANES;
            // exp(-2 a) is the square of exp(-a): every narrower bandwidth costs one product
            v8 e = exp_negative(load(at) * splat(-widest));
            v8 slope = e * splat(widest);
            v8 kernel = e;
            float inverse = widest;
            for (int32_t b = 1; b < t.bandwidths; ++b) {
                e *= e;
                inverse *= 2;
                kernel += e;
                slope += e * splat(inverse);
            }
            part += kernel;
            store(at, slope);
        }
        sum += total(part * live_lanes(n, g));
    }
    return sum;
}

// Adds the gradient of M features from k on of one group; z and dz point to the first of them.
template <int M>
INLINE void mmd_columns(const float* zz, const float* zt, const Workspace& ws, size_t stride, int64_t n, int k,
                        v8 step, const float* z, float* dz) {
    v8 own[M], sum[M];
    UNROLL
    for (int m = 0; m < M; ++m) {
        own[m] = load(z + m * LANES);
        sum[m] = splat(0);
    }
    for (int64_t j = 0; j < n; ++j) {
        const v8 near = load(zz + j * LANES), far = load(zt + j * LANES);
        const float* a = ws.z_rows + j * stride + k;
        const float* b = ws.t_rows + j * stride + k;
        UNROLL
        for (int m = 0; m < M; ++m) {
            fma_into(sum[m], near, splat(a[m]) - own[m]);
            fma_into(sum[m], far, own[m] - splat(b[m]));
        }
    }
    UNROLL
    for (int m = 0; m < M; ++m) store(dz + m * LANES, load(dz + m * LANES) + sum[m] * step);
}

// Adds the gradient of teach * MMD^2 between z and the teacher's features (ws.t_lanes) to dz.
double add_mmd(const Terms& t, Workspace& ws, int d, const float* z, int64_t n, size_t groups, float* dz) {
    const size_t count = groups * LANES, stride = up8(d);
    ws.z_rows.need(count * stride);
    ws.t_rows.need(count * stride);
    for (size_t g = 0; g < groups; ++g) {
        lanes_to_rows(z + g * d * LANES, d, ws.z_rows + g * LANES * stride, stride);
        lanes_to_rows(ws.t_lanes + g * d * LANES, d, ws.t_rows + g * LANES * stride, stride);
    }
    ws.gap_zz.need(count * count);
    ws.gap_zt.need(count * count);
    ws.gap_tt.need(count * count);
    squared_distances(z, groups, ws.z_rows, count, stride, d, ws.gap_zz);
    squared_distances(z, groups, ws.t_rows, count, stride, d, ws.gap_zt);
    squared_distances(ws.t_lanes, groups, ws.t_rows, count, stride, d, ws.gap_tt);
    const double all = sum_gaps(ws.gap_zz, groups, count, n) + sum_gaps(ws.gap_tt, groups, count, n) +
                       2 * sum_gaps(ws.gap_zt, groups, count, n);
    const double mean = all / (2.0 * n * (2.0 * n - 1));
    const float width = mean < t.floor ? t.floor : static_cast<float>(mean);
    const double value = apply_kernels(t, width, ws.gap_zz, groups, count, n) +
                         apply_kernels(t, width, ws.gap_tt, groups, count, n) -
                         2 * apply_kernels(t, width, ws.gap_zt, groups, count, n);
    const float step = static_cast<float>(4.0 * t.teach / (static_cast<double>(n) * n));
    for (size_t g = 0; g < groups; ++g) {
        const v8 steps = live_lanes(n, g) * splat(step);
        const float* zz = ws.gap_zz + g * count * LANES;
        const float* zt = ws.gap_zt + g * count * LANES;
        const float* from = z + g * d * LANES;
        float* to = dz + g * d * LANES;
        int k = 0;
        for (; k + 4 <= d; k += 4)
            mmd_columns<4>(zz, zt, ws, stride, n, k, steps, from + k * LANES, to + k * LANES);
        for (; k < d; ++k) mmd_columns<1>(zz, zt, ws, stride, n, k, steps, from + k * LANES, to + k * LANES);
    }
    return t.teach * value / (static_cast<double>(n) * n);
}

// The teacher's logits (lanes) become softmax(logits / temperature).
void soften(int classes, float temperature, float* logits, size_t groups) {
    const v8 inverse = splat(1.0f / temperature);
    for (size_t g = 0; g < groups; ++g, logits += static_cast<size_t>(classes) * LANES) {
        v8 top = load(logits), sum = splat(0);
        for (int c = 1; c < classes; ++c) {
            const v8 v = load(logits + c * LANES);
            top = v > top ? v : top;
        }
        for (int c = 0; c < classes; ++c) {
            const v8 e = exp_negative((load(logits + c * LANES) - top) * inverse);
            sum += e;
            store(logits + c * LANES, e);
        }
        for (int c = 0; c < classes; ++c) store(logits + c * LANES, load(logits + c * LANES) / sum);
    }
}

// From the gradient of the mean cross-entropy against labels to that of (1 - teach) times it plus teach times the
// cross-entropy against soft answers. Returns the sum of the answers, which is not finite if one of them is not.
double add_soft_labels(int classes, float teach, const float* soft, const int64_t* label, int64_t n, float* d) {
    const float share = teach / static_cast<float>(n);
    double sum = 0;
    for (int64_t first = 0; first < n; first += LANES, d += classes * LANES, soft += classes * LANES) {
        const v8 live = live_lanes(n - first, 0);
        v8 all = splat(0);
        for (int c = 0; c < classes; ++c) {
            const v8 q = load(soft + c * LANES);
            all += q;
            store(d + c * LANES, load(d + c * LANES) - q * (live * splat(share)));
        }
        sum += total(all * live);
        for (int i = 0; i < LANES && first + i < n; ++i) d[label[first + i] * LANES + i] += share;
    }
    return sum;
}

// out = weight[0] * own + sum_j weight[j + 1] * others[j], over `size` entries of rows `stride` apart
void mix(const float* weight, const float* own, const float* others, int64_t models, size_t stride, size_t size,
         float* out) {
    constexpr size_t BLOCK = 2048;
    for (size_t from = 0; from < size; from += BLOCK) {
        const size_t m = size - from < BLOCK ? size - from : BLOCK;
        float* __restrict to = out + from;
        for (size_t k = 0; k < m; ++k) to[k] = weight[0] * own[from + k];
        for (int64_t j = 0; j < models; ++j) {
            const float w = weight[j + 1];
            const float* __restrict row = others + j * stride + from;
            for (size_t k = 0; k < m; ++k) to[k] += w * row[k];
        }
    }
}

// The gradient of theta and phi at the mixture becomes that of the trained model; extra_grad that of the weights.
void mixture_gradient(const Plan& p, const Terms& t, Workspace& ws, const float* theta, const float* phi) {
    const size_t stride = p.theta_size + p.phi_size;
    for (int64_t j = -1; j < t.models; ++j) {
        const float* a = j < 0 ? theta : t.others + j * stride;
        const float* b = j < 0 ? phi : t.others + j * stride + p.theta_size;
        const double slope = dot(ws.theta_grad, a, p.theta_size) + dot(ws.phi_grad, b, p.phi_size);
        ws.extra_grad[j + 1] = static_cast<float>(slope) + t.stiffness * (t.extra[j + 1] - t.origin[j + 1]);
    }
    const float own = t.extra[0];
    for (size_t k = 0; k < p.theta_size; ++k) ws.theta_grad[k] *= own;
    for (size_t k = 0; k < p.phi_size; ++k) ws.phi_grad[k] *= own;
}

int check_index(const Data& d, int64_t n) {
    if (!d.index) return d.start >= 0 && n >= 0 && d.start <= d.total - n ? OK : BAD_INDEX;
    for (int64_t i = 0; i < n; ++i)
        if (d.index[i] < 0 || d.index[i] >= d.total) return BAD_INDEX;
    return OK;
}

// Batches that rise from 0, samples that exist, labels that are classes.
int check_batches(const Plan& p, int64_t total, const int64_t* y, const int64_t* order, const int64_t* bounds,
                  int64_t batches) {
    if (batches < 0 || bounds[0] != 0) return BAD_CALL;
    for (int64_t b = 0; b < batches; ++b)
        if (bounds[b + 1] <= bounds[b]) return BAD_CALL;
    const int status = check_index(Data{nullptr, 0, total, order, 0}, bounds[batches]);
    if (status != OK) return status;
    for (int64_t i = 0; i < bounds[batches]; ++i)
        if (y[order[i]] < 0 || y[order[i]] >= p.classes) return BAD_LABEL;
    return OK;
}

// lanes [groups][width][8] -> out [n][width]
void lanes_to_batch(const float* lanes, size_t width, int64_t n, float* out) {
    float block[8][8];
    for (int64_t first = 0; first < n; first += LANES, lanes += width * LANES) {
        const int live = n - first < LANES ? static_cast<int>(n - first) : LANES;
        float* to = out + static_cast<size_t>(first) * width;
        for (size_t k = 0; k < width; k += 8) {
            v8 r[8];
            const size_t m = width - k < 8 ? width - k : 8;
            for (size_t i = 0; i < 8; ++i) r[i] = i < m ? load(lanes + (k + i) * LANES) : splat(0);
            transpose8(r);
            for (int i = 0; i < live; ++i) {
                if (m == 8) {
                    storeu(to + i * width + k, r[i]);
                } else {
                    storeu(block[i], r[i]);
                    std::memcpy(to + i * width + k, block[i], m * sizeof(float));
                }
            }
        }
    }
}

// batch [n][width] -> lanes, lanes beyond n zero
void batch_to_lanes(const float* batch, size_t width, int64_t n, const float* zeros, float* lanes) {
    for (int64_t first = 0; first < n; first += LANES, lanes += width * LANES) {
        const float* row[8];
        for (int i = 0; i < 8; ++i)
            row[i] = first + i < n ? batch + static_cast<size_t>(first + i) * width : zeros;
        rows_to_lanes(row, width, lanes);
    }
}

// Features of every sample that occurs in order[0..n), each computed once. row[i] is the row of sample i.
void cache_features(const Plan& p, Workspace& ws, const float* theta, const Data& d, int64_t n,
                    Buffer<int64_t>& row, Buffer<float>& z) {
    Buffer<int64_t> distinct;
    row.need(d.total);
    distinct.need(n < d.total ? n : d.total);
    for (int64_t i = 0; i < d.total; ++i) row[i] = -1;
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
        const int64_t sample = d.at(i);
        if (row[sample] >= 0) continue;
        row[sample] = count;
        distinct[count++] = sample;
    }
    z.need(static_cast<size_t>(count) * p.features);
    const Data unique{d.x, d.is_u8, d.total, distinct, 0};
    for (int64_t first = 0; first < count; first += EVAL_GROUPS * LANES) {
        const int64_t m = count - first < EVAL_GROUPS * LANES ? count - first : EVAL_GROUPS * LANES;
        const float* f = extract(p, ws, ws.tape, theta, unique, first, m, false);
        lanes_to_batch(f, p.features, m, z + static_cast<size_t>(first) * p.features);
    }
}

// Rows of z for positions [first, first+n) of an order, as lanes; lanes beyond n are zero.
void gather_lanes(const float* z, size_t width, const int64_t* row, const int64_t* order, int64_t n, const float* zeros,
                  float* lanes) {
    for (int64_t first = 0; first < n; first += LANES, lanes += width * LANES) {
        const float* from[8];
        for (int i = 0; i < LANES; ++i) {
            const int64_t sample = first + i < n ? order[first + i] : -1;
            from[i] = sample < 0 ? zeros : z + static_cast<size_t>(row ? row[sample] : sample) * width;
        }
        rows_to_lanes(from, width, lanes);
    }
}

// The features of a frozen extractor, each computed once, and what is needed to find those of a batch. A sample's
// features do not depend on its place in a batch, so this changes no bit.
struct Cache {
    Buffer<int64_t> row;
    Buffer<float> z, zeros;

    void fill(const Plan& p, Workspace& ws, const float* theta, const Data& d, int64_t n) {
        pack_weights(p, ws, theta);
        cache_features(p, ws, theta, d, n, row, z);
        zeros.need(p.features);
    }
    void gather(const Plan& p, const int64_t* order, int64_t n, Buffer<float>& lanes) const {
        lanes.need(static_cast<size_t>((n + LANES - 1) / LANES) * p.features * LANES);
        gather_lanes(z, p.features, row, order, n, zeros, lanes);
    }
};

// theta and phi of the mixture, into ws.mixed
void mix_model(const Plan& p, const Terms& t, Workspace& ws, const float* theta, const float* phi) {
    const size_t stride = p.theta_size + p.phi_size;
    ws.mixed.need(stride);
    mix(t.extra, theta, t.others, t.models, stride, p.theta_size, ws.mixed);
    mix(t.extra, phi, t.others + p.theta_size, t.models, stride, p.phi_size, ws.mixed + p.theta_size);
}

// Finds the teacher's features of a batch, and turns the gradient of the cross-entropy in the logits into that of
// the loss. Returns zero, or a number that is not finite if an answer of the teacher is not.
double weigh_answers(const Plan& p, const Terms& t, Workspace& ws, const Cache& teacher, const int64_t* order,
                     const int64_t* label, int64_t n) {
    const size_t groups = static_cast<size_t>((n + LANES - 1) / LANES);
    const float weight = t.teacher_phi ? t.share + t.teach : t.share;
    if (weight != 1) scale_vectors(ws.logits, groups * p.classes, weight);
    if (t.teacher_theta) teacher.gather(p, order, n, ws.t_lanes);
    if (!t.teacher_phi) return 0;
    ws.soft.need(groups * p.classes * LANES);
    dense_forward(p.head, t.teacher_phi, ws.t_lanes, ws.soft, groups, false);
    soften(p.classes, t.temperature, ws.soft, groups);
    return 0 * add_soft_labels(p.classes, t.teach, ws.soft, label, n, ws.logits);
}

// Adds the gradients of the terms on features z to ws.grad_a, and finds that of the shift; returns their value.
double add_terms(const Plan& p, const Terms& t, Workspace& ws, const int64_t* label, const float* z, int64_t n) {
    const size_t groups = static_cast<size_t>((n + LANES - 1) / LANES);
    const int d = p.features;
    double value = 0;
    if (t.shifts) shift_gradient(ws.grad_a, t.shift_scale, d, groups, ws.extra_grad);
    if (t.target) value += add_class_pull(t, ws, d, z, label, n, ws.grad_a);
    if (t.mean) value += add_mean_pull(t, d, z, n, groups, ws.grad_a);
    if (t.teacher_theta && !t.teacher_phi) value += add_mmd(t, ws, d, z, n, groups, ws.grad_a);
    return value;
}

template <class F>
int guarded(F&& f) {
    try {
        return f();
    } catch (const std::bad_alloc&) {
        return NO_MEMORY;
    } catch (...) {
        return BAD_CALL;
    }
}

}  // namespace

// ------------------------------------------------------------------------------------------ C ABI

API int fedapa_abi() { return 3; }

API int fedapa_cpu_has_avx2() {
#if (defined(__x86_64__) || defined(__i386__)) && (defined(__GNUC__) || defined(__clang__))
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 0;
#endif
}

API void fedapa_plan_free(void* plan) { delete static_cast<Plan*>(plan); }
API void fedapa_workspace_free(void* ws) { delete static_cast<Workspace*>(ws); }
API void fedapa_tape_free(void* tape) { delete static_cast<Tape*>(tape); }
API void* fedapa_workspace_new() { return new (std::nothrow) Workspace(); }
API void* fedapa_tape_new() { return new (std::nothrow) Tape(); }

// mean and std may both be null: input is then used as it is (uint8 is divided by 255).
API void* fedapa_plan_new(int channels, int side, int blocks, const int* convs, int dense, const int* hidden,
                          int classes, const float* mean, const float* std) {
    if (channels < 1 || blocks < 1 || blocks > MAX_BLOCKS || dense < 0 || dense > MAX_DENSE || classes < 1)
        return nullptr;
    Plan* plan = nullptr;
    const int status = guarded([&] {
        plan = new Plan();
        Plan& p = *plan;
        p.channels = channels;
        p.side = side;
        p.blocks = blocks;
        p.dense = dense;
        p.classes = classes;
        p.sample_size = static_cast<size_t>(channels) * side * side;
        size_t at = 0;
        int in = channels, s = side;
        for (int b = 0; b < blocks; ++b) {
            Block& k = p.block[b];
            if (s < KERNEL + 1 || convs[b] < 1) return static_cast<int>(BAD_CALL);
            k.in = in;
            k.side = s;
            k.out = convs[b];
            k.pooled = (s - KERNEL + 1) / 2;
            k.step = b && 2 * up8(in) <= 3 * static_cast<size_t>(in) ? static_cast<int>(up8(in)) : in;
            k.vecs = static_cast<int>(up8(static_cast<size_t>(KERNEL) * k.step) / 8);
            k.weight = at;
            at += static_cast<size_t>(k.out) * in * TAPS;
            k.bias = at;
            at += k.out;
            k.windows = static_cast<size_t>(k.pooled) * k.pooled;
            k.windows8 = up8(k.windows);
            const size_t area = static_cast<size_t>(s) * s;
            k.in_lanes = area * in * LANES;
            k.out_lanes = k.out * k.windows * LANES;
            k.pixel_stride = up8(area * k.step) + 8 * up8(in) + 8;
            k.pixel_source.need(up8(area * k.step));
            for (size_t pixel = 0; pixel < area; ++pixel)
                for (int c = 0; c < k.step; ++c)
                    k.pixel_source[pixel * k.step + c] = static_cast<int32_t>((c < in ? c : 0) * area + pixel);
            k.window_offset.need(k.windows8);
            for (int y = 0; y < k.pooled; ++y)
                for (int x = 0; x < k.pooled; ++x) k.window_offset[y * k.pooled + x] = (2 * y * s + 2 * x) * k.step;
            in = k.out;
            s = k.pooled;
        }
        int width = in * s * s;
        for (int l = 0; l < dense; ++l) {
            Dense& k = p.layer[l];
            if (hidden[l] < 1) return static_cast<int>(BAD_CALL);
            k.in = width;
            k.out = hidden[l];
            k.weight = at;
            at += static_cast<size_t>(k.in) * k.out;
            k.bias = at;
            at += k.out;
            width = k.out;
        }
        p.features = width;
        p.theta_size = at;
        p.head.in = width;
        p.head.out = classes;
        p.head.weight = 0;
        p.head.bias = static_cast<size_t>(width) * classes;
        p.phi_size = p.head.bias + classes;
        p.normalise = mean && std;
        p.scale.need(channels);
        p.shift.need(channels);
        p.scale_f32.need(channels);
        p.shift_f32.need(channels);
        for (int c = 0; c < channels; ++c) {
            const double m = p.normalise ? mean[c] : 0.0, q = p.normalise ? std[c] : 1.0;
            p.scale[c] = static_cast<float>(1.0 / (255.0 * q));
            p.scale_f32[c] = static_cast<float>(1.0 / q);
            p.shift[c] = p.shift_f32[c] = static_cast<float>(-m / q);
        }
        return static_cast<int>(OK);
    });
    if (status != OK) {
        delete plan;
        return nullptr;
    }
    return plan;
}

API int64_t fedapa_theta_size(const void* plan) { return static_cast<const Plan*>(plan)->theta_size; }
API int64_t fedapa_phi_size(const void* plan) { return static_cast<const Plan*>(plan)->phi_size; }
API int64_t fedapa_feature_size(const void* plan) { return static_cast<const Plan*>(plan)->features; }

// Features with a tape: z [n][d].
API int fedapa_features(const void* plan, void* workspace, void* tape, const float* theta, const void* x,
                        int is_u8, int64_t total, const int64_t* index, int64_t start, int64_t n, float* z) {
    return guarded([&] {
        const Plan& p = *static_cast<const Plan*>(plan);
        Workspace& ws = *static_cast<Workspace*>(workspace);
        const Data d{x, is_u8, total, index, start};
        const int status = check_index(d, n);
        if (status != OK || n == 0) return status;
        pack_weights(p, ws, theta);
        lanes_to_batch(extract(p, ws, *static_cast<Tape*>(tape), theta, d, 0, n, true), p.features, n, z);
        return static_cast<int>(OK);
    });
}

// Gradient of theta from dz [n][d] and the tape of the same theta, x and index.
API int fedapa_backward(const void* plan, void* workspace, const void* tape, const float* theta, const void* x,
                        int is_u8, int64_t total, const int64_t* index, int64_t start, int64_t n,
                        const float* dz, float* grad) {
    return guarded([&] {
        const Plan& p = *static_cast<const Plan*>(plan);
        Workspace& ws = *static_cast<Workspace*>(workspace);
        const Tape& t = *static_cast<const Tape*>(tape);
        const Data d{x, is_u8, total, index, start};
        const int status = check_index(d, n);
        if (status != OK) return status;
        if (n == 0 || t.samples != n) return static_cast<int>(BAD_CALL);
        need_gradients(p, ws, static_cast<size_t>((n + LANES - 1) / LANES));
        ws.input.need(p.block[0].in_lanes);
        Buffer<float> zeros;
        zeros.need(p.features);
        batch_to_lanes(dz, p.features, n, zeros, ws.grad_a);
        extract_backward(p, ws, t, theta, d, 0, n, grad);
        return static_cast<int>(OK);
    });
}

// Local training by a recipe, with terms, in place. Batch b is order[bounds[b] .. bounds[b+1]). The reported
// loss is the mean loss of the recipe over the samples of batches report_from and later. A loss that is not
// finite stops the training before its update: NOT_FINITE, with the batch in *failed. Terms need a trained
// theta, the mixture a trained phi as well, a teacher's answers plain cross-entropy, the pull to class targets
// any cross-entropy.
API int fedapa_train(const void* plan, void* workspace, float* theta, float* phi, float* v_theta, float* v_phi,
                     const void* x, int is_u8, const int64_t* y, int64_t total, const int64_t* order,
                     const int64_t* bounds, int64_t batches, float lr_theta, float lr_phi,
                     const void* recipe, const float* anchor_theta, const float* anchor_phi, float rho,
                     int train_theta, int train_phi, int64_t report_from, const void* terms, double* loss,
                     int64_t* failed) {
    return guarded([&] {
        const Plan& p = *static_cast<const Plan*>(plan);
        Workspace& ws = *static_cast<Workspace*>(workspace);
        const Recipe& r = *static_cast<const Recipe*>(recipe);
        const Terms* t = static_cast<const Terms*>(terms);
        *failed = -1;
        *loss = 0;
        if (t && (!train_theta || (t->mixes() && !train_phi))) return static_cast<int>(BAD_CALL);
        if (r.rule < SGD || r.rule > ADAMW) return static_cast<int>(BAD_CALL);
        if (r.target && (p.classes != 1 || (t && t->target))) return static_cast<int>(BAD_CALL);
        if (t && t->teacher_phi && !r.plain_loss()) return static_cast<int>(BAD_CALL);
        const int status = check_batches(p, total, y, order, bounds, batches);
        if (status != OK) return status;
        const Data d{x, is_u8, total, order, 0};
        ws.theta_grad.need(p.theta_size);
        ws.phi_grad.need(p.phi_size);
        Buffer<int64_t> label;
        double sum = 0;
        int64_t seen = 0;
        Cache frozen, teacher;  // a frozen extractor is run once per sample, not once per visit
        Buffer<float> gathered;
        const bool cached = !train_theta && batches > 1;
        if (cached) frozen.fill(p, ws, theta, d, bounds[batches]);
        if (t && t->teacher_theta) teacher.fill(p, ws, t->teacher_theta, d, bounds[batches]);
        if (t && t->extra) ws.extra_grad.need(t->extra_size(p));
        for (int64_t b = 0; b < batches; ++b) {
            const int64_t first = bounds[b], n = bounds[b + 1] - first;
            const size_t groups = static_cast<size_t>((n + LANES - 1) / LANES);
            const float *w = theta, *h = phi;
            if (t && t->mixes()) {
                mix_model(p, *t, ws, theta, phi);
                w = ws.mixed;
                h = w + p.theta_size;
            }
            if (!cached) pack_weights(p, ws, w);
            need_gradients(p, ws, groups);
            ws.logits.need(groups * p.classes * LANES);
            label.need(n);
            for (int64_t i = 0; i < n; ++i) label[i] = y[order[first + i]];
            if (cached) frozen.gather(p, order + first, n, gathered);
            const float* z = cached ? gathered : extract(p, ws, ws.tape, w, d, first, n, train_theta);
            const float* input = z;  // of the head
            if (t && t->shifts) {
                ws.shifted.need(groups * p.features * LANES);
                add_shift(z, t->extra, t->shift_scale, p.features, groups, ws.shifted);
                input = ws.shifted;
            }
            dense_forward(p.head, h, input, ws.logits, groups, false);
            const double batch = loss_gradient(r, p.classes, ws.logits, order + first, label, n);
            double added = 0;
            if (t) added += weigh_answers(p, *t, ws, teacher, order + first, label, n);
            if (train_theta) dense_input_gradient(p.head, h, ws.logits, ws.grad_a, groups);
            if (t) added += add_terms(p, *t, ws, label, z, n);
            if (!std::isfinite(batch + added)) {
                *failed = b;
                return static_cast<int>(NOT_FINITE);
            }
            if (b >= report_from) {
                sum += batch;
                seen += n;
            }
            if (train_theta) extract_backward(p, ws, ws.tape, w, d, first, n, ws.theta_grad);
            if (train_phi) dense_weight_gradient(p.head, ws, input, ws.logits, groups, ws.phi_grad);
            if (t && t->mixes()) mixture_gradient(p, *t, ws, theta, phi);
            Part parts[3];
            int count = 0;
            if (train_phi) parts[count++] = {p.phi_size, phi, v_phi, ws.phi_grad, anchor_phi, lr_phi};
            if (train_theta) parts[count++] = {p.theta_size, theta, v_theta, ws.theta_grad, anchor_theta, lr_theta};
            if (t && t->train_extra)
                parts[count++] = {t->extra_size(p), t->extra, t->v_extra, ws.extra_grad, nullptr, t->lr_extra};
            move(r, rho, parts, count);
        }
        *loss = seen ? sum / static_cast<double>(seen) : 0;
        return static_cast<int>(OK);
    });
}

// Training of the weights W [phi_size] of a head global + (local - global) * (1 - W) on features z [total][d], in
// place; W stays within 0 and 1. *loss is that of the last batch.
API int fedapa_mix_head(const void* plan, void* workspace, float* weights, float* velocity, const float* global,
                        const float* local, const float* z, const int64_t* y, int64_t total, const int64_t* order,
                        const int64_t* bounds, int64_t batches, float lr, float momentum, float decay, double* loss,
                        int64_t* failed) {
    return guarded([&] {
        const Plan& p = *static_cast<const Plan*>(plan);
        Workspace& ws = *static_cast<Workspace*>(workspace);
        *failed = -1;
        *loss = 0;
        const int status = check_batches(p, total, y, order, bounds, batches);
        if (status != OK) return status;
        ws.phi_grad.need(p.phi_size);
        ws.mixed.need(p.phi_size);
        Buffer<int64_t> label;
        Buffer<float> lanes, zeros;
        zeros.need(p.features);
        for (int64_t b = 0; b < batches; ++b) {
            const int64_t first = bounds[b], n = bounds[b + 1] - first;
            const size_t groups = static_cast<size_t>((n + LANES - 1) / LANES);
            ws.logits.need(groups * p.classes * LANES);
            lanes.need(groups * p.features * LANES);
            label.need(n);
            for (int64_t i = 0; i < n; ++i) label[i] = y[order[first + i]];
            for (size_t k = 0; k < p.phi_size; ++k) ws.mixed[k] = global[k] + (local[k] - global[k]) * (1 - weights[k]);
            gather_lanes(z, p.features, nullptr, order + first, n, zeros, lanes);
            dense_forward(p.head, ws.mixed, lanes, ws.logits, groups, false);
            const double batch = cross_entropy<true>(Recipe{}, p.classes, ws.logits, label, n);
            if (!std::isfinite(batch)) {
                *failed = b;
                return static_cast<int>(NOT_FINITE);
            }
            dense_weight_gradient(p.head, ws, lanes, ws.logits, groups, ws.phi_grad);
            for (size_t k = 0; k < p.phi_size; ++k) ws.phi_grad[k] *= global[k] - local[k];
            sgd(p.phi_size, weights, velocity, ws.phi_grad, nullptr, lr, Optimiser{momentum, decay, 0});
            for (size_t k = 0; k < p.phi_size; ++k)
                weights[k] = weights[k] < 0 ? 0 : weights[k] > 1 ? 1 : weights[k];
            *loss = batch / static_cast<double>(n);
        }
        return static_cast<int>(OK);
    });
}

// Evaluation without a tape. Any of z [n][d], logits [n][classes] and correct may be null; phi only
// matters for the last two. *not_a_number is set if a logit is NaN, whether it is counted or handed out.
API int fedapa_evaluate(const void* plan, void* workspace, const float* theta, const float* phi, const void* x,
                        int is_u8, const int64_t* y, int64_t total, const int64_t* index, int64_t start,
                        int64_t n, float* z, float* logits, int64_t* correct, int* not_a_number) {
    return guarded([&] {
        const Plan& p = *static_cast<const Plan*>(plan);
        Workspace& ws = *static_cast<Workspace*>(workspace);
        Data d{x, is_u8, total, index, start};
        const int status = check_index(d, n);
        if (status != OK) return status;
        if (correct)
            for (int64_t i = 0; i < n; ++i)
                if (y[d.at(i)] < 0 || y[d.at(i)] >= p.classes) return static_cast<int>(BAD_LABEL);
        const bool head = logits || correct;
        i8x odd = splat_i(0);
        int64_t hits = 0;
        if (n) pack_weights(p, ws, theta);
        for (int64_t first = 0; first < n; first += EVAL_GROUPS * LANES) {
            const int64_t m = n - first < EVAL_GROUPS * LANES ? n - first : EVAL_GROUPS * LANES;
            const size_t groups = static_cast<size_t>((m + LANES - 1) / LANES);
            const float* f = extract(p, ws, ws.tape, theta, d, first, m, false);
            if (z) lanes_to_batch(f, p.features, m, z + static_cast<size_t>(first) * p.features);
            if (!head) continue;
            ws.logits.need(groups * p.classes * LANES);
            dense_forward(p.head, phi, f, ws.logits, groups, false);
            if (logits) lanes_to_batch(ws.logits, p.classes, m, logits + static_cast<size_t>(first) * p.classes);
            for (size_t g = 0; g < groups; ++g) {
                const float* l = ws.logits + g * p.classes * LANES;
                v8 best = load(l);
                i8x arg = splat_i(0);
                odd |= best != best;
                for (int c = 1; c < p.classes; ++c) {
                    const v8 v = load(l + c * LANES);
                    const i8x take = v > best;
                    odd |= v != v;
                    best = take ? v : best;
                    arg = take ? splat_i(c) : arg;
                }
                for (int i = 0; correct && i < LANES; ++i) {
                    const int64_t at = first + static_cast<int64_t>(g) * LANES + i;
                    if (at < first + m) hits += arg[i] == y[d.at(at)];
                }
            }
        }
        if (correct) *correct = hits;
        *not_a_number = 0;
        for (int i = 0; i < 8; ++i) *not_a_number |= odd[i] != 0;
        return static_cast<int>(OK);
    });
}
