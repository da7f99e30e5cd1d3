package cpu

import (
	"fmt"
	"math"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/llir/llvm/ir"
	"github.com/stretchr/testify/require"

	"reprise/ir/dtype"
	"reprise/ir/kern"
)

// contractFma32 is fma(a, b, c) in f32 with one rounding: the product is exact in f64,
// the sum is rounded to odd there (which a second rounding cannot tell from exact).
func contractFma32(a, b, c float32) float32 { return float32(contractOdd(a, b, c)) }

func contractOdd(a, b, c float32) float64 {
	p, d := float64(a)*float64(b), float64(c)
	s := p + d
	if math.IsInf(s, 0) || math.IsNaN(s) {
		return s
	}
	bb := s - p
	err := (p - (s - bb)) + (d - bb)
	if u := math.Float64bits(s); err != 0 && u&1 == 0 {
		if (err > 0) == (s > 0) {
			u++
		} else {
			u--
		}
		s = math.Float64frombits(u)
	}
	return s
}

// contractFmaFlush is the same with denormal inputs and results taken as zero.
func contractFmaFlush(a, b, c float32) float32 {
	z := func(x float32) float32 {
		if u := math.Float32bits(x); u&0x7f800000 == 0 {
			return math.Float32frombits(u & 0x80000000)
		}
		return x
	}
	s := contractOdd(z(a), z(b), z(c))
	// Tiny after rounding to 24 bits with an unbounded exponent.
	if math.Abs(s) < 0x1p-126*(1-0x1p-25) {
		return float32(math.Copysign(0, s))
	}
	return float32(s)
}

func contractBF16(x float32) uint16 {
	u := math.Float32bits(x)
	if x != x {
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7fff + (u >> 16 & 1)) >> 16)
}

// contractF16 rounds to half precision, ties to even.
func contractF16(x float32) uint16 {
	sign := uint16(math.Float32bits(x) >> 16 & 0x8000)
	a := math.Abs(float64(x))
	switch {
	case x != x:
		return sign | 0x7e00
	case a >= 65520:
		return sign | 0x7c00
	case a < 0x1p-14:
		return sign | uint16(math.RoundToEven(a*0x1p24))
	}
	_, e := math.Frexp(a)
	q := math.RoundToEven(math.Ldexp(a, 11-e)) // 1024 … 2048
	if q == 2048 {
		q, e = 1024, e+1
	}
	return sign | uint16(e+14)<<10 | (uint16(q) - 1024)
}

func contractFromF16(h uint16) float32 {
	m, e := float64(h&0x3ff), int(h>>10&31)
	v := math.Ldexp(m, -24)
	if e == 31 {
		v = math.Inf(1)
		if m != 0 {
			v = math.NaN()
		}
	} else if e > 0 {
		v = math.Ldexp(1024+m, e-25)
	}
	if h&0x8000 != 0 {
		v = -v
	}
	return float32(v)
}

// contractBuf is an operand in memory.
type contractBuf struct {
	dt   dtype.Type
	data []byte
}

func newContractBuf(dt dtype.Type, n int64) *contractBuf {
	return &contractBuf{dt, make([]byte, max(1, n)*dt.Size()+64)}
}

func (b *contractBuf) base() unsafe.Pointer {
	p := uintptr(unsafe.Pointer(&b.data[0]))
	return unsafe.Pointer(&b.data[(64-p%64)%64])
}

func (b *contractBuf) at(i int64) unsafe.Pointer {
	return unsafe.Add(b.base(), i*b.dt.Size())
}

func (b *contractBuf) set(i int64, v float64) {
	switch b.dt {
	case dtype.F16:
		*(*uint16)(b.at(i)) = contractF16(float32(v))
	case dtype.BF16:
		*(*uint16)(b.at(i)) = contractBF16(float32(v))
	case dtype.F32:
		*(*float32)(b.at(i)) = float32(v)
	default:
		*(*float64)(b.at(i)) = v
	}
}

func (b *contractBuf) get(i int64) float64 {
	switch b.dt {
	case dtype.F16:
		return float64(contractFromF16(*(*uint16)(b.at(i))))
	case dtype.BF16:
		return float64(math.Float32frombits(uint32(*(*uint16)(b.at(i))) << 16))
	case dtype.F32:
		return float64(*(*float32)(b.at(i)))
	}
	return *(*float64)(b.at(i))
}

// values are the first n elements.
func (b *contractBuf) values(n int64) []float64 {
	vs := make([]float64, n)
	for i := range vs {
		vs[i] = b.get(int64(i))
	}
	return vs
}

// contractReference is the definition, element by element: visit gets each finished
// chain with its flat batch index.
func contractReference(c *kern.Contract, a, b *contractBuf, visit func(batch, m, n, offC int64, acc float64)) {
	nb, nk := int64(1), int64(1)
	for _, ax := range c.Batch {
		nb *= ax.Size
	}
	for _, ax := range c.K {
		nk *= ax.Size
	}
	ka, kb := make([]int64, nk), make([]int64, nk)
	for i := range nk {
		rest := i
		for j := len(c.K) - 1; j >= 0; j-- {
			ka[i] += rest % c.K[j].Size * c.K[j].StrideA
			kb[i] += rest % c.K[j].Size * c.K[j].StrideB
			rest /= c.K[j].Size
		}
	}
	va, vb := a.values(c.LenA), b.values(c.LenB)
	pairs := c.A == dtype.BF16 && c.B == dtype.BF16 && c.Acc == dtype.F32
	for bi := range nb {
		oa, ob, oc, rest := int64(0), int64(0), int64(0), bi
		for j := len(c.Batch) - 1; j >= 0; j-- {
			x := rest % c.Batch[j].Size
			oa, ob, oc = oa+x*c.Batch[j].StrideA, ob+x*c.Batch[j].StrideB, oc+x*c.Batch[j].StrideC
			rest /= c.Batch[j].Size
		}
		for m := range c.M.Size {
			for n := range c.N.Size {
				pa, pb := oa+m*c.M.StrideA, ob+n*c.N.StrideB
				out := 0.0
				switch {
				case c.Acc == dtype.F64:
					for k := range nk {
						out = math.FMA(va[pa+ka[k]], vb[pb+kb[k]], out)
					}
				case pairs:
					acc := float32(0)
					for k := int64(0); k < nk; k += 2 {
						var x, y float32
						if k+1 < nk {
							x, y = float32(va[pa+ka[k+1]]), float32(vb[pb+kb[k+1]])
						}
						acc = contractFmaFlush(x, y, acc)
						acc = contractFmaFlush(float32(va[pa+ka[k]]), float32(vb[pb+kb[k]]), acc)
					}
					out = float64(acc)
				default:
					acc := float32(0)
					for k := range nk {
						acc = contractFma32(float32(va[pa+ka[k]]), float32(vb[pb+kb[k]]), acc)
					}
					out = float64(acc)
				}
				visit(bi, m, n, oc+m*c.M.StrideC+n*c.N.StrideC, out)
			}
		}
	}
}

// contractLib compiles a module to a shared object and loads it.
func contractLib(t testing.TB, m *ir.Module) uintptr {
	clang, err := exec.LookPath("clang-19")
	if err != nil {
		t.Skip("no clang-19: apt-get install clang-19")
	}
	dir := t.TempDir()
	ll, so := filepath.Join(dir, "k.ll"), filepath.Join(dir, "k.so")
	require.NoError(t, os.WriteFile(ll, []byte(m.String()), 0o644))
	out, err := exec.Command(clang, "-O2", "-fPIC", "-shared", "-nostdlib", "-fuse-ld=lld", "-Wl,-z,defs", "-Wno-override-module", "-o", so, ll).CombinedOutput()
	require.NoError(t, err, string(out))
	h, err := purego.Dlopen(so, purego.RTLD_NOW|purego.RTLD_LOCAL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = purego.Dlclose(h) })
	return h
}

// contractRun runs tiles lo … hi-1 of a kernel.
func contractRun(t testing.TB, lib uintptr, symbol string, args []unsafe.Pointer, lo, hi int64, scratch unsafe.Pointer) {
	fn, err := purego.Dlsym(lib, symbol)
	require.NoError(t, err)
	purego.SyscallN(fn, uintptr(unsafe.Pointer(&args[0])), uintptr(lo), uintptr(hi), uintptr(scratch))
}

// contractCPU tells whether this machine runs code for the target.
func contractCPU(t Target) bool {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return t == V3
	}
	want := map[Target]string{V3: "avx2", V4: "avx512bw", V4BF16: "avx512_bf16"}[t]
	return containsWord(string(info), want)
}

func containsWord(s, w string) bool {
	for i := 0; i+len(w) <= len(s); i++ {
		if s[i:i+len(w)] == w && (i+len(w) == len(s) || s[i+len(w)] == ' ' || s[i+len(w)] == '\n') && (i == 0 || s[i-1] == ' ') {
			return true
		}
	}
	return false
}

// contractTried tells whether a target is tried with a contraction: by default V4BF16, whose code of other types is V4's, only with
// products of bf16.
func contractTried(target Target, c *kern.Contract) bool {
	return target != V4BF16 || emitLong() || c.A == dtype.BF16 && c.B == dtype.BF16
}

// contractRandom draws a contraction with arbitrary strides; big lets sizes pass the
// block sizes.
func contractRandom(r *rand.Rand, id int, big bool) *kern.Contract {
	size := func() int64 {
		switch r.Intn(5) {
		case 0:
			return 1
		case 1:
			return int64(1 + r.Intn(9))
		case 2:
			return int64(1 + r.Intn(40))
		}
		if big {
			return int64(1 + r.Intn(300))
		}
		return int64(1 + r.Intn(100))
	}
	kinds := [][4]dtype.Type{
		{dtype.F32, dtype.F32, dtype.F32, dtype.F32}, {dtype.F32, dtype.F32, dtype.F32, dtype.F32},
		{dtype.F64, dtype.F64, dtype.F64, dtype.F64}, {dtype.BF16, dtype.BF16, dtype.F32, dtype.BF16},
		{dtype.BF16, dtype.BF16, dtype.F32, dtype.F32}, {dtype.F16, dtype.F16, dtype.F32, dtype.F16},
		{dtype.BF16, dtype.F32, dtype.F32, dtype.F32}, {dtype.F32, dtype.F16, dtype.F32, dtype.BF16},
		{dtype.F32, dtype.F64, dtype.F64, dtype.F32},
	}
	ty := kinds[r.Intn(len(kinds))]
	c := &kern.Contract{Name: fmt.Sprintf("c%d", id), A: ty[0], B: ty[1], Acc: ty[2], Out: ty[3]}
	c.M.Size, c.N.Size = size(), size()
	for range r.Intn(3) {
		c.Batch = append(c.Batch, kern.Axis{Size: int64(1 + r.Intn(3))})
	}
	switch r.Intn(4) {
	case 0:
		c.K = []kern.Axis{{Size: int64(1 + r.Intn(7))}, {Size: int64(1 + r.Intn(40))}}
	case 1:
		c.K = []kern.Axis{{Size: size()}, {Size: 1 + 2*int64(r.Intn(3))}}
	default:
		k := size()
		if big && r.Intn(3) == 0 {
			k = int64(300 + r.Intn(1500))
		}
		c.K = []kern.Axis{{Size: k}}
	}
	// Lay each buffer out densely in a random order of its axes, sometimes with gaps.
	lay := func(axes []*kern.Axis, set func(*kern.Axis, int64)) int64 {
		r.Shuffle(len(axes), func(i, j int) { axes[i], axes[j] = axes[j], axes[i] })
		stride := int64(1)
		if r.Intn(8) == 0 {
			stride = 2
		}
		for _, ax := range axes {
			set(ax, stride)
			stride *= ax.Size
			if r.Intn(6) == 0 {
				stride += 3
			}
		}
		return stride
	}
	var aa, bb, cc []*kern.Axis
	for i := range c.Batch {
		ax := &c.Batch[i]
		cc = append(cc, ax)
		if r.Intn(3) > 0 {
			aa = append(aa, ax)
		}
		if r.Intn(3) > 0 {
			bb = append(bb, ax)
		}
	}
	for i := range c.K {
		aa, bb = append(aa, &c.K[i]), append(bb, &c.K[i])
	}
	aa, cc, bb = append(aa, &c.M), append(cc, &c.M, &c.N), append(bb, &c.N)
	c.LenA = lay(aa, func(x *kern.Axis, s int64) { x.StrideA = s })
	c.LenB = lay(bb, func(x *kern.Axis, s int64) { x.StrideB = s })
	c.LenC = lay(cc, func(x *kern.Axis, s int64) { x.StrideC = s })
	return c
}

func contractFill(r *rand.Rand, b *contractBuf, n int64) {
	mode := r.Intn(4)
	for i := range n {
		v := r.NormFloat64()
		switch mode {
		case 0: // tiny products: denormals and negative zeros
			v *= math.Ldexp(1, -60-r.Intn(20))
		case 1:
			v *= math.Ldexp(1, r.Intn(40)-20)
		case 2:
			if r.Intn(4) == 0 {
				v = 0
			}
		}
		b.set(i, v)
	}
}

// contractAddEpilogue gives c an epilogue as models have them: bias, an activation
// rounded to a narrow type, a residual, two outputs.
func contractAddEpilogue(c *kern.Contract) {
	batches := int64(1)
	for _, ax := range c.Batch {
		batches *= ax.Size
	}
	m, n := c.M.Size, c.N.Size
	e := &kern.Epilogue{Batch: kern.NewVar("b", dtype.I64), M: kern.NewVar("m", dtype.I64), N: kern.NewVar("n", dtype.I64), Acc: kern.NewVar("acc", c.Acc)}
	c.Params = []kern.Param{{Name: "bias", DType: c.Acc, Len: n}, {Name: "res", DType: c.Acc, Len: batches * m * n},
		{Name: "out", DType: c.Acc, Len: batches * m * n, Writes: true}, {Name: "act", DType: dtype.BF16, Len: batches * m * n, Writes: true}}
	buf := func(i int) kern.Buf { return kern.Buf{Param: i, DType: c.Params[i].DType} }
	at := kern.Add(kern.Mul(kern.Add(kern.Mul(kern.Get(e.Batch), kern.I64(m)), kern.Get(e.M)), kern.I64(n)), kern.Get(e.N))
	x := kern.NewVar("x", c.Acc)
	e.Body = []kern.Stmt{
		kern.Let(x, kern.Add(kern.Get(e.Acc), buf(0).At(kern.Get(e.N)))),
		buf(3).Set(at, kern.Convert(kern.Tanh(kern.Get(x)), dtype.BF16)),
		buf(2).Set(at, kern.Add(kern.Get(x), buf(1).At(at))),
	}
	c.Epilogue = e
}

// contractInterpret runs c's epilogue by the interpreter of kern on finished chains
// acc [batch, m, n]; bufs are those of c.Params.
func contractInterpret(t testing.TB, c *kern.Contract, acc []byte, bufs [][]byte) {
	e, rows := c.Epilogue, int64(len(acc))/c.Acc.Size()/c.N.Size
	k := &kern.Kernel{Name: "rows", Tiles: rows, Tile: kern.NewVar("tile", dtype.I64),
		Params: append(append([]kern.Param{}, c.Params...), kern.Param{Name: "acc", DType: c.Acc, Len: rows * c.N.Size})}
	src := kern.Buf{Param: len(c.Params), DType: c.Acc}
	row := kern.Mul(kern.Get(k.Tile), kern.I64(c.N.Size))
	body := append([]kern.Stmt{kern.Let(e.Acc, src.At(kern.Add(row, kern.Get(e.N))))}, e.Body...)
	k.Body = []kern.Stmt{
		kern.Let(e.Batch, kern.Div(kern.Get(k.Tile), kern.I64(c.M.Size))),
		kern.Let(e.M, kern.Rem(kern.Get(k.Tile), kern.I64(c.M.Size))),
		kern.Lane(e.N, kern.I64(c.N.Size), body...),
	}
	require.NoError(t, kern.Check(k))
	require.NoError(t, kern.Run(k, append(append([][]byte{}, bufs...), acc), 0, rows))
}

func TestContractEpilogue(t *testing.T) {
	for _, target := range []Target{V3, V4, V4BF16} {
		t.Run(target.String(), func(t *testing.T) {
			if !contractCPU(target) {
				t.Skip("this CPU does not run the target's code")
			}
			t.Parallel()
			r := rand.New(rand.NewSource(11))
			m := ir.NewModule()
			var cs []*kern.Contract
			var ls []Launch
			for i := range 16 {
				c := contractRandom(r, i, true)
				if i == 0 { // few columns: computed turned
					c.M.Size, c.N.Size, c.K, c.Batch = 90, 4, []kern.Axis{{Size: 700, StrideA: 1, StrideB: 4}}, nil
					c.M.StrideA, c.N.StrideB, c.LenA, c.LenB = 700, 1, 90*700, 4*700
				}
				if i == 1 { // several K blocks and tiles
					c.M.Size, c.N.Size, c.K, c.Batch = 301, 150, []kern.Axis{{Size: 1700, StrideA: 1, StrideB: 150}}, nil
					c.M.StrideA, c.N.StrideB, c.LenA, c.LenB = 1700, 1, 301*1700, 150*1700
				}
				if !contractTried(target, c) {
					continue
				}
				contractAddEpilogue(c)
				l, err := EmitContract(m, c, target, c.Name)
				require.NoError(t, err)
				cs, ls = append(cs, c), append(ls, l[0])
			}
			require.NotEmpty(t, cs)
			lib := contractLib(t, m)
			for i, c := range cs {
				a, b := newContractBuf(c.A, c.LenA), newContractBuf(c.B, c.LenB)
				contractFill(r, a, c.LenA)
				contractFill(r, b, c.LenB)
				total := c.Params[1].Len
				acc := newContractBuf(c.Acc, total)
				contractReference(c, a, b, func(bi, x, y, _ int64, v float64) { acc.set((bi*c.M.Size+x)*c.N.Size+y, v) })
				args := []unsafe.Pointer{a.base(), b.base()}
				var want [][]byte
				for _, p := range c.Params {
					buf := newContractBuf(p.DType, p.Len)
					for j := range p.Len {
						buf.set(j, r.NormFloat64())
					}
					args = append(args, buf.base())
					want = append(want, append([]byte{}, unsafe.Slice((*byte)(buf.base()), p.Len*p.DType.Size())...))
				}
				contractInterpret(t, c, unsafe.Slice((*byte)(acc.base()), total*c.Acc.Size()), want)
				scratch := newContractBuf(dtype.U8, ScratchBytes)
				for lo, tiles := int64(0), ls[i].Tiles; lo < tiles; {
					hi := lo + 1 + r.Int63n(tiles-lo)
					contractRun(t, lib, c.Name, args, lo, hi, scratch.base())
					lo = hi
				}
				for j, p := range c.Params {
					got := unsafe.Slice((*byte)(args[2+j]), p.Len*p.DType.Size())
					require.NoError(t, emitSame(p.DType, got, want[j]), "%d: %s of %+v", i, p.Name, *c)
				}
			}
		})
	}
}

func TestContractEmpty(t *testing.T) {
	c := &kern.Contract{Name: "none", A: dtype.F32, B: dtype.F32, Acc: dtype.F32, Out: dtype.F32,
		M: kern.Axis{Size: 0, StrideA: 2, StrideC: 2}, N: kern.Axis{Size: 2, StrideB: 1, StrideC: 1}, K: []kern.Axis{{Size: 2, StrideA: 1, StrideB: 2}}, LenC: 6}
	l, err := EmitContract(ir.NewModule(), c, V3, "x")
	require.NoError(t, err)
	require.Empty(t, l)

	// An empty chain is +0.
	c.M.Size, c.K[0].Size = 3, 0
	m := ir.NewModule()
	l, err = EmitContract(m, c, V3, "x")
	require.NoError(t, err)
	out := newContractBuf(dtype.F32, 6)
	out.set(5, 3)
	contractRun(t, contractLib(t, m), "x", []unsafe.Pointer{out.base(), out.base(), out.base()}, 0, l[0].Tiles, newContractBuf(dtype.U8, ScratchBytes).base())
	for i := range int64(6) {
		require.Zero(t, out.get(i))
	}
}

func TestContractRefusals(t *testing.T) {
	c := &kern.Contract{Name: "ints", A: dtype.I32, B: dtype.I32, Acc: dtype.I32, Out: dtype.I32,
		M: kern.Axis{Size: 2, StrideA: 2, StrideC: 2}, N: kern.Axis{Size: 2, StrideB: 1, StrideC: 1}, K: []kern.Axis{{Size: 2, StrideA: 1, StrideB: 2}}}
	_, err := EmitContract(ir.NewModule(), c, V3, "x")
	require.EqualError(t, err, "contraction ints accumulates in i32: only f32 and f64 have a packed kernel")
	c.Acc = dtype.F32
	_, err = EmitContract(ir.NewModule(), c, V3, "x")
	require.EqualError(t, err, "contraction ints of i32 by i32 in f32 has no packed kernel")
}

// The blocking is a function of shape and types, and its code of the blocking.
func TestContractDeterministic(t *testing.T) {
	text := func() string {
		r := rand.New(rand.NewSource(5))
		m := ir.NewModule()
		for i := range 20 {
			_, err := EmitContract(m, contractRandom(r, i, true), V4, fmt.Sprintf("k%d", i))
			require.NoError(t, err)
		}
		return m.String()
	}
	require.Equal(t, text(), text())
}

func TestContractEqualsChain(t *testing.T) {
	for _, target := range []Target{V3, V4, V4BF16} {
		t.Run(target.String(), func(t *testing.T) {
			if !contractCPU(target) {
				t.Skip("this CPU does not run the target's code")
			}
			t.Parallel()
			r := rand.New(rand.NewSource(7))
			m := ir.NewModule()
			var cs []*kern.Contract
			var ls []Launch
			for i := range 48 {
				c := contractRandom(r, i, i%4 == 0)
				if !contractTried(target, c) {
					continue
				}
				l, err := EmitContract(m, c, target, c.Name)
				require.NoError(t, err)
				cs, ls = append(cs, c), append(ls, l[0])
			}
			require.NotEmpty(t, cs)
			lib := contractLib(t, m)
			for i, c := range cs {
				a, b := newContractBuf(c.A, c.LenA), newContractBuf(c.B, c.LenB)
				contractFill(r, a, c.LenA)
				contractFill(r, b, c.LenB)
				got, want := newContractBuf(c.Out, c.LenC), newContractBuf(c.Out, c.LenC)
				for j := range c.LenC { // what lies between the elements must stay
					got.set(j, 77)
					want.set(j, 77)
				}
				contractReference(c, a, b, func(_, _, _, off int64, acc float64) { want.set(off, acc) })
				scratch := newContractBuf(dtype.U8, 1<<20)
				args := []unsafe.Pointer{a.base(), b.base(), got.base()}
				for lo, tiles := int64(0), ls[i].Tiles; lo < tiles; {
					hi := lo + 1 + r.Int63n(tiles-lo)
					for j := range scratch.data {
						scratch.data[j] = 0xff // NaN, whatever the type
					}
					contractRun(t, lib, c.Name, args, lo, hi, scratch.base())
					lo = hi
				}
				n := c.LenC * c.Out.Size()
				if string(unsafe.Slice((*byte)(got.base()), n)) != string(unsafe.Slice((*byte)(want.base()), n)) {
					bad := 0
					for j := range c.LenC {
						if g, w := got.get(j), want.get(j); g != w && bad < 5 {
							t.Errorf("element %d: got %x want %x", j, g, w)
							bad++
						}
					}
					p, _ := contractMakePlan(c, target)
					t.Fatalf("%d: %+v\nplan %+v", i, *c, *p)
				}
			}
		})
	}
}
