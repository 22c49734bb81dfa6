// Decoding with the tiny transformer (transformer.py), many sequences at once, with a cache of keys and values.
//
// One lane of a vector is one sequence, and every loop runs over features: nothing is ever summed across lanes, so a
// sequence's bits depend neither on its company nor on its place. A group is LANES sequences; two groups make a block,
// whose activations [feature][sequence] stay in the first-level cache while the weights pass by once for all of them. A
// block decodes all tokens of a call before the next block begins, so that its keys and values stay near as well.
//
// Symbols: D width, F hidden width, V words, K inputs of a matrix, R groups of a block, S tokens fed.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "lanes.h"

constexpr int MOST = 2;   // groups of a block: 8 sums under way keep both multipliers busy; 3 groups were slower
constexpr int PANEL = 4;  // outputs whose weights lie side by side: matrices are [outputs / PANEL][K][PANEL], zeros added

struct Shape {
    int32_t width, layers, heads, hidden, words, positions, networks, room;  // room: positions of the cache
};

// What is drawn after the tokens that are fed.
struct Draw {
    int32_t tokens, place, names;       // log-probs of `watch` [names] are wanted of the token drawn at `place`
    int32_t push_position, push_token;  // logits[push_token] += push where the token at push_position is drawn
    float push, temperature;
    const float* uniforms;  // [tokens, rows], or null: the likeliest token
    const int64_t* watch;
    int64_t* ids;           // out: [rows, tokens], as logp and entropy
    float *logp, *entropy;
    float* watched;         // out: [rows, names]
};

struct Job {
    int32_t groups, length, rows, fed;  // length: positions the cache holds; fed: tokens to read
    const float* weights;               // the networks one after another, each in the order of Network and Layer
    const int32_t* reader;              // [positions]: the network whose logits are read at each
    float* cache;                       // [groups][networks][layers][room][2 D][LANES]
    const int32_t* occupants;           // [groups * LANES]: row of each lane, -1: none
    const int64_t* ids;                 // [rows, fed]
    float* logits;                      // out: [rows, V], unless tokens are drawn
    const Draw* draw;                   // or null
};

static inline int64_t padded(int64_t n) { return (n + PANEL - 1) / PANEL * PANEL; }

struct Layer {
    const float *norm_attention, *qkv, *mix, *norm_feedforward, *widen, *narrow;
};

struct Network {
    const float *word, *position, *norm, *head;  // [V][D], [positions][D], [D], packed
    const float* layers;
    int64_t D, F, layer_size;

    Network(const Shape& s, const float* weights, int number) : D(s.width), F(s.hidden) {
        layer_size = 2 * D + (padded(3 * D) + padded(D) + padded(F)) * D + padded(D) * F;
        int64_t outside = (s.words + s.positions) * D + D + padded(s.words) * D;
        word = weights + number * (outside + s.layers * layer_size);
        position = word + s.words * D;
        norm = position + s.positions * D;
        head = norm + D;
        layers = head + padded(s.words) * D;
    }
    Layer layer(int number) const {
        const float* w = layers + number * layer_size;
        Layer found;
        found.norm_attention = w;
        found.qkv = (w += D);
        found.mix = (w += padded(3 * D) * D);
        found.norm_feedforward = (w += padded(D) * D);
        found.widen = (w += D);
        found.narrow = w + padded(F) * D;
        return found;
    }
};

// Working memory of a block: vectors [feature][R groups]; scores [positions] and mass [V] of one group at a time.
struct Scratch {
    float *x, *normed, *seen, *wide, *logits, *scores, *mass, *memory;

    explicit Scratch(const Shape& s) {
        const int64_t D = padded(s.width), V = padded(s.words);
        const int64_t widest = std::max(padded(3 * s.width), padded(s.hidden));
        const int64_t size = (MOST * (3 * D + widest + V) + s.room + V) * LANES * sizeof(float);
        memory = static_cast<float*>(std::aligned_alloc(64, (size + 63) / 64 * 64));
        float* next = memory;
        auto take = [&next](int64_t vectors) { return std::exchange(next, next + vectors * LANES); };
        x = take(MOST * D), normed = take(MOST * D), seen = take(MOST * D), wide = take(MOST * widest);
        logits = take(MOST * V), scores = take(s.room), mass = take(V);
    }
    ~Scratch() { std::free(memory); }
    Scratch(const Scratch&) = delete;
};

enum After { STORE, ADD, GELU };

// PANELS panels of outputs for R groups: y[o] (+)= sum over k of w[o][k] x[k], each sum in the order of k.
template <int R, int PANELS, After AFTER>
static inline void tile(const float* w, const float* x, float* y, int64_t K) {
    constexpr int O = PANELS * PANEL;
    Vec sum[O][R];
    UNROLL for (int o = 0; o < O; ++o) UNROLL for (int r = 0; r < R; ++r) sum[o][r] = Vec{};
    for (int64_t k = 0; k < K; ++k) {
        Vec in[R];
        UNROLL for (int r = 0; r < R; ++r) hold(in[r] = at(x + (k * R + r) * LANES));
        UNROLL for (int o = 0; o < O; ++o) {
            Vec weight = all(w[(o / PANEL * K + k) * PANEL + o % PANEL]);
            UNROLL for (int r = 0; r < R; ++r) sum[o][r] = fma(weight, in[r], sum[o][r]);
        }
    }
    UNROLL for (int o = 0; o < O; ++o) UNROLL for (int r = 0; r < R; ++r) {
        Vec& out = at(y + (o * R + r) * LANES);
        out = AFTER == ADD ? out + sum[o][r] : AFTER == GELU ? gelu(sum[o][r]) : sum[o][r];
    }
}

template <int R, After AFTER>
static void multiply(const float* w, const float* x, float* y, int64_t outputs, int64_t K) {
    constexpr int AT_ONCE = R == 1 ? 3 : 1;  // enough sums under way to keep the multipliers busy
    int64_t panels = padded(outputs) / PANEL, p = 0;
    for (; p + AT_ONCE <= panels; p += AT_ONCE)
        tile<R, AT_ONCE, AFTER>(w + p * PANEL * K, x, y + p * PANEL * R * LANES, K);
    for (; p < panels; ++p) tile<R, 1, AFTER>(w + p * PANEL * K, x, y + p * PANEL * R * LANES, K);
}

template <int R>
static void normalise(const float* x, const float* scale, float* y, int64_t D) {
    for (int r = 0; r < R; ++r) {
        Vec mean = {}, square = {};
        for (int64_t d = 0; d < D; ++d) mean += at(x + (d * R + r) * LANES);
        mean /= (float)D;
        for (int64_t d = 0; d < D; ++d) {
            Vec away = at(x + (d * R + r) * LANES) - mean;
            square = fma(away, away, square);
        }
        Vec rate = square / (float)D + 1e-5f;
        for (int i = 0; i < LANES; ++i) rate[i] = 1.0f / std::sqrt(rate[i]);
        for (int64_t d = 0; d < D; ++d)
            at(y + (d * R + r) * LANES) = (at(x + (d * R + r) * LANES) - mean) * rate * scale[d];
    }
}

// Scores of N positions: q . key / sqrt(Dh), each sum in the order of d; returns the largest score so far.
template <int N>
static inline Vec score(const float* q, int64_t step, const float* keys, int64_t stride, int64_t Dh, float* scores,
                        Vec most) {
    const float scale = 1.0f / std::sqrt((float)Dh);
    Vec sum[N];
    UNROLL for (int n = 0; n < N; ++n) sum[n] = Vec{};
    for (int64_t d = 0; d < Dh; ++d) {
        Vec of = at(q + d * step);
        UNROLL for (int n = 0; n < N; ++n) sum[n] = fma(of, at(keys + n * stride + d * LANES), sum[n]);
    }
    UNROLL for (int n = 0; n < N; ++n) {
        at(scores + n * LANES) = sum[n] *= scale;
        most = sum[n] > most ? sum[n] : most;
    }
    return most;
}

// N features of the mean of `upto` values by weights that add up to `total`, each sum in the order of positions.
template <int N>
static inline void mean(const float* weights, Vec total, const float* values, int64_t stride, int64_t upto, float* out,
                        int64_t step) {
    Vec sum[N];
    UNROLL for (int n = 0; n < N; ++n) sum[n] = Vec{};
    for (int64_t p = 0; p < upto; ++p) {
        Vec weight = at(weights + p * LANES);
        UNROLL for (int n = 0; n < N; ++n) sum[n] = fma(weight, at(values + p * stride + n * LANES), sum[n]);
    }
    UNROLL for (int n = 0; n < N; ++n) at(out + n * step) = sum[n] / total;
}

// Attention of one group's newest position over `upto` positions; vectors of q and seen are `step` apart.
static void attend(const Shape& s, const float* q, int64_t step, const float* past, int64_t upto, float* seen,
                   float* scores) {
    const int64_t D = s.width, Dh = D / s.heads, stride = 2 * D * LANES;
    for (int64_t h = 0; h < D; h += Dh) {
        const float *key = past + h * LANES, *value = key + D * LANES;
        Vec most = all(-INFINITY), total = {};
        int64_t p = 0, d = 0;
        const float* from = q + h * step;
        for (; p + 4 <= upto; p += 4)
            most = score<4>(from, step, key + p * stride, stride, Dh, scores + p * LANES, most);
        for (; p < upto; ++p) most = score<1>(from, step, key + p * stride, stride, Dh, scores + p * LANES, most);
        for (p = 0; p < upto; ++p) {
            Vec& weight = at(scores + p * LANES);
            weight = exp_negative(weight - most);
            total += weight;
        }
        float* out = seen + h * step;
        for (; d + 8 <= Dh; d += 8) mean<8>(scores, total, value + d * LANES, stride, upto, out + d * step, step);
        for (; d < Dh; ++d) mean<1>(scores, total, value + d * LANES, stride, upto, out + d * step, step);
    }
}

// One position of one network for a block: keys and values into the cache `past`, logits into b.logits where wanted.
template <int R>
static void advance(const Shape& s, const Network& net, const int64_t* words, float* past, int64_t position,
                    bool wanted, Scratch& b) {
    const int64_t D = s.width, W = R * LANES, layer_size = (int64_t)s.room * 2 * D * LANES;
    for (int64_t i = 0; i < W; ++i) {
        const float *word = net.word + words[i] * D, *place = net.position + position * D;
        for (int64_t d = 0; d < D; ++d) b.x[d * W + i] = word[d] + place[d];
    }
    for (int l = 0; l < s.layers; ++l) {
        const Layer layer = net.layer(l);
        normalise<R>(b.x, layer.norm_attention, b.normed, D);
        multiply<R, STORE>(layer.qkv, b.normed, b.wide, 3 * D, D);
        const bool unread = l == s.layers - 1 && !wanted;  // then its keys and values are all that is needed
        for (int r = 0; r < R; ++r) {
            float *held = past + (r * s.networks * s.layers + l) * layer_size, *q = b.wide + r * LANES;
            for (int64_t d = 0; d < 2 * D; ++d) at(held + (position * 2 * D + d) * LANES) = at(q + (D + d) * W);
            if (!unread) attend(s, q, W, held, position + 1, b.seen + r * LANES, b.scores);
        }
        if (unread) return;
        multiply<R, ADD>(layer.mix, b.seen, b.x, D, D);
        normalise<R>(b.x, layer.norm_feedforward, b.normed, D);
        multiply<R, GELU>(layer.widen, b.normed, b.wide, s.hidden, D);
        multiply<R, ADD>(layer.narrow, b.wide, b.x, D, s.hidden);
    }
    normalise<R>(b.x, net.norm, b.normed, D);
    multiply<R, STORE>(net.head, b.normed, b.logits, s.words, D);
}

// Draws token t of the sequences of one group from logits z, vectors `step` apart; z and mass [V] are overwritten.
static void draw(const Shape& s, const Job& job, int t, const int32_t* rows, float* z, int64_t step, float* mass) {
    const Draw& want = *job.draw;
    const int64_t V = s.words;
    if (want.push_position == job.length + job.fed + t) at(z + want.push_token * step) += want.push;
    Vec most = all(-INFINITY), total = {}, slope = {}, uniform = {};
    Int drawn = {};  // the likeliest
    for (int64_t v = 0; v < V; ++v) {
        Vec& logit = at(z + v * step);
        logit /= want.temperature;
        drawn = logit > most ? Int{} + (int32_t)v : drawn;
        most = logit > most ? logit : most;
    }
    for (int64_t v = 0; v < V; ++v) {
        Vec away = at(z + v * step) - most, p = exp_negative(away);
        slope = fma(p, away, slope);
        at(mass + v * LANES) = total += p;
    }
    if (want.uniforms) {
        drawn = Int{};
        for (int i = 0; i < LANES; ++i)
            if (rows[i] >= 0) uniform[i] = want.uniforms[(int64_t)t * job.rows + rows[i]];
        uniform *= total;
        for (int64_t v = 0; v < V; ++v) {  // what completes the mass is never passed, however the product rounds
            Vec upto = at(mass + v * LANES);
            drawn -= (upto <= uniform) & (upto < total);
        }
    }
    for (int i = 0; i < LANES; ++i) {
        if (rows[i] < 0) continue;
        const int64_t row = rows[i], id = drawn[i] < V ? drawn[i] : V - 1, out = row * want.tokens + t;
        const float log_total = std::log(total[i]);
        want.ids[out] = id;
        want.logp[out] = z[id * step + i] - most[i] - log_total;
        want.entropy[out] = log_total - slope[i] / total[i];
        for (int n = 0; t == want.place && n < want.names; ++n)
            want.watched[row * want.names + n] = z[want.watch[n] * step + i] - most[i] - log_total;
    }
}

// All positions of a call for the block whose first group is `first`.
template <int R>
static void run(const Shape& s, const Job& job, int first, Scratch& b) {
    const int64_t W = R * LANES, V = s.words, network_size = (int64_t)s.layers * s.room * 2 * s.width * LANES;
    const int32_t* rows = job.occupants + (int64_t)first * LANES;
    const int drawn = job.draw ? job.draw->tokens : 0, reads = job.fed + (drawn ? drawn - 1 : 0);
    for (int t = 0; t < reads; ++t) {
        const int reader = job.reader[job.length + t];
        const bool wanted = t >= job.fed - 1;
        int64_t words[W];
        for (int64_t i = 0; i < W; ++i)
            words[i] = rows[i] < 0 ? 0
                     : t < job.fed ? job.ids[(int64_t)rows[i] * job.fed + t]
                                   : job.draw->ids[(int64_t)rows[i] * drawn + t - job.fed];
        for (int n = 0; n < s.networks; ++n) {
            float* past = job.cache + first * s.networks * network_size + n * network_size;
            advance<R>(s, Network(s, job.weights, n), words, past, job.length + t, wanted && n == reader, b);
        }
        for (int r = 0; wanted && r < R; ++r) {
            const int32_t* mine = rows + r * LANES;
            if (drawn) draw(s, job, t - job.fed + 1, mine, b.logits + r * LANES, W, b.mass);
            for (int i = 0; !drawn && i < LANES; ++i)
                for (int64_t v = 0; mine[i] >= 0 && v < V; ++v)
                    job.logits[mine[i] * V + v] = b.logits[v * W + r * LANES + i];
        }
    }
}

extern "C" {

int32_t metastable_lanes() { return LANES; }
int32_t metastable_panel() { return PANEL; }

// Returns 0, or 1 when there is no memory to work in.
int32_t metastable_decode(const Shape* shape, const Job* job) {
    Scratch scratch(*shape);
    if (!scratch.memory) return 1;
    for (int first = 0; first < job->groups;) {
        if (job->groups - first >= MOST) run<MOST>(*shape, *job, first, scratch), first += MOST;
        else run<1>(*shape, *job, first, scratch), first += 1;
    }
    return 0;
}

// Copies what the cache holds of lanes `from` [count] to lanes `to`.
void metastable_move(const Shape* s, float* cache, int64_t length, const int64_t* from, const int64_t* to,
                     int64_t count) {
    const int64_t held = s->networks * (int64_t)s->layers, block = (int64_t)s->room * 2 * s->width * LANES;
    for (int64_t i = 0; i < count; ++i)
        for (int64_t n = 0; n < held; ++n) {
            const float* source = cache + (from[i] / LANES * held + n) * block + from[i] % LANES;
            float* target = cache + (to[i] / LANES * held + n) * block + to[i] % LANES;
            for (int64_t v = 0; v < length * 2 * s->width; ++v) target[v * LANES] = source[v * LANES];
        }
}
}
