package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/llir/llvm/ir"
	"github.com/stretchr/testify/require"

	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/ops/attnref"
)

// attentionLib compiles a module to a shared object and loads it.
func attentionLib(t testing.TB, m *ir.Module) (lib uintptr, took time.Duration) {
	t.Helper()
	clang, err := exec.LookPath("clang-19")
	if err != nil {
		t.Skip("clang-19 is not installed")
	}
	dir := t.TempDir()
	ll, so := filepath.Join(dir, "m.ll"), filepath.Join(dir, "m.so")
	require.NoError(t, os.WriteFile(ll, []byte(m.String()), 0o644))
	start := time.Now()
	flags := append(clangFlags(so), "-shared", "-Wno-override-module")
	flags = slices.DeleteFunc(flags, func(f string) bool { return f == "-c" })
	flags[slices.Index(flags, "-")] = ll
	msg, err := exec.Command(clang, flags...).CombinedOutput()
	took = time.Since(start)
	require.NoError(t, err, "%s", msg)
	lib, err = purego.Dlopen(so, purego.RTLD_NOW|purego.RTLD_LOCAL)
	require.NoError(t, err)
	t.Cleanup(func() { purego.Dlclose(lib) })
	return lib, took
}

// attentionKernel is a loaded kernel.
type attentionKernel func(args unsafe.Pointer, lo, hi int64, scratch unsafe.Pointer)

func attentionSymbol(t testing.TB, lib uintptr, name string) attentionKernel {
	var k attentionKernel
	purego.RegisterLibFunc(&k, lib, name)
	return k
}

// attentionAligned is a slice of n elements that starts at a multiple of 64 bytes.
func attentionAligned[T any](n int64) []T {
	var x T
	pad := int64(64 / unsafe.Sizeof(x))
	s := make([]T, n+pad)
	off := (64 - int64(uintptr(unsafe.Pointer(&s[0]))%64)) % 64 / int64(unsafe.Sizeof(x))
	return s[off:][:n:n]
}

// attentionRun runs the tiles of a kernel in the given pieces, in that order; the
// scratch is junk before each.
func attentionRun(k attentionKernel, pieces [][2]int64, bufs ...unsafe.Pointer) {
	scratch := attentionAligned[uint32](1 << 18)
	for _, p := range pieces {
		for i := range scratch {
			scratch[i] = 0x7fc0dead // NaN: what is read unwritten shows
		}
		k(unsafe.Pointer(&bufs[0]), p[0], p[1], unsafe.Pointer(&scratch[0]))
	}
}

// attentionCuts cuts 0 … n into a few pieces in random order.
func attentionCuts(r *rand.Rand, n int64) [][2]int64 {
	var pieces [][2]int64
	for lo := int64(0); lo < n; {
		hi := lo + 1 + r.Int64N(n-lo)
		pieces = append(pieces, [2]int64{lo, hi})
		lo = hi
	}
	r.Shuffle(len(pieces), func(i, j int) { pieces[i], pieces[j] = pieces[j], pieces[i] })
	return pieces
}

func attentionRandom(r *rand.Rand, n int64) []float32 {
	x := attentionAligned[float32](n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

func attentionPointer[T any](x []T) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(x)) }

func attentionEqual(t *testing.T, what string, want, got []float32) {
	t.Helper()
	require.Len(t, got, len(want))
	bad := 0
	for i := range want {
		w, g := want[i], got[i]
		if math.Float32bits(w) != math.Float32bits(g) && !(w != w && g != g) {
			if bad == 0 {
				t.Errorf("%s[%d]: want %v (%08x), got %v (%08x)", what, i, w, math.Float32bits(w), g, math.Float32bits(g))
			}
			bad++
		}
	}
	if bad > 0 {
		t.Errorf("%s: %d of %d differ", what, bad, len(want))
	}
}

// attentionCase is one shape with its data.
type attentionCase struct {
	a          kern.Attention
	q, k, v    []float32
	dout       []float32
	key        [16]byte
	out, lse   []float32
	dq, dk, dv []float32
}

func attentionNew(r *rand.Rand, a kern.Attention) *attentionCase {
	c := &attentionCase{a: a}
	nq, nk := a.Batch*a.Tq*a.Heads*a.Dim, a.Batch*a.Tk*a.KVHeads*a.Dim
	c.q, c.dout = attentionRandom(r, nq), attentionRandom(r, nq)
	c.k, c.v = attentionRandom(r, nk), attentionRandom(r, nk)
	for i := range c.key {
		c.key[i] = byte(r.Uint32())
	}
	return c
}

// harden strews in what makes −0 and NaN: zeros of both signs, denormals, and with
// wild also infinities.
func (c *attentionCase) harden(r *rand.Rand, wild bool) {
	inf := float32(math.Inf(1))
	for _, x := range [][]float32{c.q, c.k, c.v, c.dout} {
		for i := range x {
			switch r.IntN(12) {
			case 0:
				x[i] = float32(math.Copysign(0, -1))
			case 1, 2, 3, 4, 5:
				x[i] *= 0x1p-140
			case 6, 7:
				x[i] *= 0x1p-70
			case 8:
				x[i] *= 8
			case 9:
				if wild && r.IntN(300) == 0 {
					x[i] = []float32{inf, -inf}[r.IntN(2)]
				}
			}
		}
	}
}

func (c *attentionCase) reference() {
	c.out, c.lse = attnref.Forward(&c.a, c.q, c.k, c.v, &c.key)
	c.dq, c.dk, c.dv = attnref.Backward(&c.a, c.q, c.k, c.v, c.out, c.lse, c.dout, &c.key)
}

// emit writes both kernels of the case and returns their numbers of tiles.
func (c *attentionCase) emit(t testing.TB, m *ir.Module, target Target, name string) (fwd, bwd int64) {
	a := c.a
	a.Name = name + "_f"
	f, err := EmitAttention(m, &a, target)
	require.NoError(t, err)
	a.Name, a.Backward = name+"_b", true
	b, err := EmitAttention(m, &a, target)
	require.NoError(t, err)
	require.Len(t, f, 1)
	require.Len(t, b, 1)
	return f[0].Tiles, b[0].Tiles
}

// args are the arguments of both kernels, results being fresh buffers of junk.
func (c *attentionCase) args() (fwd, bwd []unsafe.Pointer, out, lse, dq, dk, dv []float32) {
	junk := func(n int) []float32 {
		x := attentionAligned[float32](int64(n))
		for i := range x {
			x[i] = float32(math.NaN())
		}
		return x
	}
	a := &c.a
	out, lse = junk(len(c.q)), junk(int(a.Batch*a.Heads*a.Tq))
	dq, dk, dv = junk(len(c.q)), junk(len(c.k)), junk(len(c.k))
	fwd = []unsafe.Pointer{attentionPointer(c.q), attentionPointer(c.k), attentionPointer(c.v)}
	bwd = append(append([]unsafe.Pointer(nil), fwd...), attentionPointer(out), attentionPointer(lse), attentionPointer(c.dout))
	if a.Dropout > 0 {
		fwd, bwd = append(fwd, attentionPointer(c.key[:])), append(bwd, attentionPointer(c.key[:]))
	}
	fwd = append(fwd, attentionPointer(out), attentionPointer(lse))
	bwd = append(bwd, attentionPointer(dq), attentionPointer(dk), attentionPointer(dv))
	return
}

// attentionShapes are small and odd shapes: tails in every direction, grouped
// heads, causal with more keys than queries, blocks that end on and off multiples of 64.
func attentionShapes() []kern.Attention {
	var as []kern.Attention
	add := func(b, h, hk, tq, tk, d int64, causal bool, drop float32) {
		as = append(as, kern.Attention{DType: dtype.F32, Batch: b, Heads: h, KVHeads: hk, Tq: tq, Tk: tk, Dim: d,
			Causal: causal, Scale: float32(1 / math.Sqrt(float64(d))), Dropout: drop, RNG: uint32(7 + len(as))})
	}
	add(2, 2, 2, 64, 64, 64, true, 0)
	add(1, 16, 8, 70, 66, 64, false, 0.1)
	add(1, 1, 1, 128, 128, 64, true, 0.2)
	add(1, 4, 2, 130, 130, 16, true, 0.1)
	add(1, 2, 1, 1, 77, 8, false, 0.5)
	add(2, 3, 1, 33, 97, 20, true, 0.3)
	add(1, 6, 3, 65, 129, 40, true, 0)
	add(1, 1, 1, 200, 70, 80, false, 0)
	add(1, 2, 2, 63, 191, 24, true, 0.25)
	add(1, 1, 1, 96, 96, 33, false, 0.1)
	add(1, 1, 1, 70, 70, 66, true, 0.9)
	add(1, 2, 2, 3, 5, 7, true, 0.2)
	return as
}

func TestAttentionEqualsReference(t *testing.T) {
	shapes := attentionShapes()
	// Each shape with ordinary data, and the causal ones with data that tries what
	// the mask may leave out.
	cases := make([][]*attentionCase, len(shapes))
	for i, a := range shapes {
		data := 1
		if a.Causal {
			data = 3
		}
		for n := range data {
			r := rand.New(rand.NewPCG(1, uint64(3*i+n)))
			c := attentionNew(r, a)
			if n > 0 {
				c.harden(r, n == 2)
			}
			c.reference()
			cases[i] = append(cases[i], c)
		}
	}
	for _, target := range []Target{V3, V4} {
		t.Run([]string{"v3", "v4"}[target], func(t *testing.T) {
			m := ir.NewModule()
			tiles := make([][2]int64, len(shapes))
			for i := range shapes {
				tiles[i][0], tiles[i][1] = cases[i][0].emit(t, m, target, fmt.Sprintf("k%d", i))
			}
			lib, _ := attentionLib(t, m)
			for i, a := range shapes {
				f, b := attentionSymbol(t, lib, fmt.Sprintf("k%d_f", i)), attentionSymbol(t, lib, fmt.Sprintf("k%d_b", i))
				for n, c := range cases[i] {
					t.Run(fmt.Sprintf("B%d_H%d.%d_T%d.%d_D%d_causal=%v_drop=%v_%d", a.Batch, a.Heads, a.KVHeads, a.Tq, a.Tk, a.Dim, a.Causal, a.Dropout, n), func(t *testing.T) {
						r := rand.New(rand.NewPCG(2, uint64(i)))
						fwd, bwd, out, lse, dq, dk, dv := c.args()
						attentionRun(f, attentionCuts(r, tiles[i][0]), fwd...)
						attentionEqual(t, "out", c.out, out)
						attentionEqual(t, "lse", c.lse, lse)
						attentionRun(b, attentionCuts(r, tiles[i][1]), bwd...)
						attentionEqual(t, "dq", c.dq, dq)
						attentionEqual(t, "dk", c.dk, dk)
						attentionEqual(t, "dv", c.dv, dv)
					})
				}
			}
		})
	}
}

// TestAttentionIsDeterministic: the text of a kernel depends on nothing but its shape.
func TestAttentionIsDeterministic(t *testing.T) {
	c := attentionNew(rand.New(rand.NewPCG(3, 3)), attentionShapes()[5])
	one, two := ir.NewModule(), ir.NewModule()
	c.emit(t, one, V4, "k")
	c.emit(t, two, V4, "k")
	require.Equal(t, one.String(), two.String())
}

func TestAttentionRefusals(t *testing.T) {
	ok := kern.Attention{Name: "a", DType: dtype.F32, Batch: 1, Heads: 2, KVHeads: 1, Tq: 4, Tk: 4, Dim: 8, Causal: true, Scale: 1}
	for name, change := range map[string]func(a *kern.Attention){
		"head dimension": func(a *kern.Attention) { a.Dim = AttentionMaxDim + 1 },
		"of bf16":        func(a *kern.Attention) { a.DType, a.Dim = dtype.BF16, AttentionMaxDim/2+1 },
		"element type":   func(a *kern.Attention) { a.DType = dtype.F64 },
		"a place":        func(a *kern.Attention) { a.Placed, a.Causal = true, false },
		"multiple":       func(a *kern.Attention) { a.KVHeads = 3 },
		"causal":         func(a *kern.Attention) { a.Tq = 5 },
		"dropout":        func(a *kern.Attention) { a.Dropout = 1 },
	} {
		a := ok
		change(&a)
		_, err := EmitAttention(ir.NewModule(), &a, V4)
		require.ErrorContains(t, err, name)
	}
}

// attentionBench is the attention of a small GPT: batch 16, 6 heads of 64, 256
// positions, causal.
func attentionBench(drop float32) kern.Attention {
	return kern.Attention{DType: dtype.F32, Batch: 16, Heads: 6, KVHeads: 6, Tq: 256, Tk: 256, Dim: 64, Causal: true,
		Scale: 0.125, Dropout: drop, RNG: 3}
}

// attentionFlops counts the block products that causality leaves.
func attentionFlops(a kern.Attention, pass string) float64 {
	pairs := 0.0
	for i := int64(0); i < a.Tq; i += 64 {
		for j := int64(0); j < a.Tk; j += 64 {
			if !a.Causal || j <= i+63+a.Tk-a.Tq {
				pairs++
			}
		}
	}
	products := map[string]float64{"forward": 2, "backward": 5}[pass]
	return products * pairs * 2 * 64 * 64 * float64(a.Dim*a.Batch*a.Heads)
}

func BenchmarkAttention(b *testing.B) {
	gpt2 := kern.Attention{DType: dtype.F32, Batch: 2, Heads: 12, KVHeads: 12, Tq: 512, Tk: 512, Dim: 64, Causal: true, Scale: 0.125}
	tiny := kern.Attention{DType: dtype.F32, Batch: 12, Heads: 4, KVHeads: 4, Tq: 64, Tk: 64, Dim: 32, Causal: true, Scale: 0.2}
	deep := kern.Attention{DType: dtype.F32, Batch: 2, Heads: 16, KVHeads: 4, Tq: 256, Tk: 256, Dim: 128, Causal: true, Scale: 0.1}
	wide := kern.Attention{DType: dtype.F32, Batch: 1, Heads: 16, KVHeads: 16, Tq: 256, Tk: 256, Dim: 64, Scale: 0.125}
	for _, target := range []Target{V3, V4} {
		for name, a := range map[string]kern.Attention{"baby": attentionBench(0), "baby_dropout": attentionBench(0.2), "gpt2_T512": gpt2, "stride4096": wide, "tiny": tiny, "grouped_D128": deep} {
			c := attentionNew(rand.New(rand.NewPCG(1, 1)), a)
			m := ir.NewModule()
			nf, nb := c.emit(b, m, target, "k")
			lib, took := attentionLib(b, m)
			f, g := attentionSymbol(b, lib, "k_f"), attentionSymbol(b, lib, "k_b")
			fwd, bwd, _, _, _, _, _ := c.args()
			for _, threads := range []int64{1, 2} {
				for _, pass := range []string{"forward", "backward"} {
					k, n, args := f, nf, fwd
					if pass == "backward" {
						k, n, args = g, nb, bwd
					}
					b.Run(fmt.Sprintf("%s/v%d/%s/threads=%d", name, 3+target, pass, threads), func(b *testing.B) {
						scratch := make([][]uint32, threads)
						for i := range scratch {
							scratch[i] = attentionAligned[uint32](1 << 18)
						}
						for range b.N {
							var wg sync.WaitGroup
							for w := range threads {
								wg.Go(func() {
									k(unsafe.Pointer(&args[0]), w*n/threads, (w+1)*n/threads, unsafe.Pointer(&scratch[w][0]))
								})
							}
							wg.Wait()
						}
						b.ReportMetric(took.Seconds(), "compile-s")
						b.ReportMetric(attentionFlops(a, pass)/1e9/(b.Elapsed().Seconds()/float64(b.N)), "GFLOP/s")
					})
				}
			}
		}
	}
}
