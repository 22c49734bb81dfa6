// Vectors of float32, one sequence to a lane, and the few functions of them that decode.cpp needs.
//
// fma() is written out and all is compiled with -ffp-contract=off, so that equal sums round alike wherever they stand.

#pragma once

#include <cmath>
#include <cstdint>

#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

#define UNROLL _Pragma("GCC unroll 16")  // so that small arrays of vectors are registers

typedef float Vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Int __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline Vec all(float value) { return value - Vec{}; }  // x - 0 is x, for -0 too
static inline Vec& at(float* p) { return *reinterpret_cast<Vec*>(p); }
static inline Vec at(const float* p) { return *reinterpret_cast<const Vec*>(p); }

// Keeps a value in its register: without it the compiler would rather read it from memory for every use.
static inline void hold(Vec& value) {
#if defined(__x86_64__)
    __asm__("" : "+v"(value));
#elif defined(__aarch64__)
    __asm__("" : "+w"(value));
#endif
}

static inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
    return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON)
    return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

// exp(x) for x <= 0, to a unit in the last place; exactly 0 below -87, so that nothing is subnormal. NaN stays NaN.
static inline Vec exp_negative(Vec x) {
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
    Vec shifted = fma(x, all(1.44269504f), all(magic));
    Vec n = shifted - magic;
    Vec r = fma(n, all(-0.693145752f), x);  // ln 2 in two pieces
    r = fma(n, all(-1.42860677e-6f), r);
    Vec y = all(1.0f / 5040);  // Taylor: |r| <= ln(2) / 2, so the first term left out is 5e-9
    const float term[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
    for (float t : term) y = fma(y, r, all(t));
    Int power = ((Int)shifted - 0x4B400000 + 127) << 23;
    return x < -87.0f ? Vec{} : y * (Vec)power;
}

// x Phi(x), the exact GELU; Phi(x) = 1/2 + x P(x^2) / Q(x^2) within 1.5e-7 for |x| < 5.5 (our minimax fit), else 0 or 1.
static inline Vec gelu(Vec x) {
    const float p[] = {6.352120166e-6f, 1.688256067e-4f, 4.677260084e-3f, 3.385263691e-2f, 3.989422346e-1f};
    const float q[] = {7.364749853e-5f, 1.884444338e-3f, 2.864586621e-2f, 2.515218952e-1f, 1.0f};
    Vec s = x * x, top = all(2.274942615e-8f), bottom = all(1.197505915e-6f);
    for (int i = 0; i < 5; ++i) {
        top = fma(top, s, all(p[i]));
        bottom = fma(bottom, s, all(q[i]));
    }
    Vec y = x * fma(x, top / bottom, all(0.5f));
    y = x > 5.5f ? x : y;
    return x < -5.5f ? Vec{} : y;
}
