package cpu

import (
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/codegen/internal/samples"
	"reprise/ir/dtype"
	"reprise/ir/kern"
)

// emitAssembly is the assembly of kernels.
func emitAssembly(t *testing.T, target Target, ks ...*kern.Kernel) string {
	t.Helper()
	u := NewUnit(target)
	for _, k := range ks {
		_, err := u.Kernel(k)
		require.NoError(t, err)
	}
	var all strings.Builder
	for _, m := range u.Modules() {
		args := append(clangFlags("-"), "-S")
		for i, a := range args {
			if a == "-c" {
				args = append(args[:i], args[i+1:]...)
				break
			}
		}
		cmd := exec.Command("clang-19", args...)
		cmd.Stdin = strings.NewReader(m)
		out, err := cmd.Output()
		require.NoError(t, err)
		all.Write(out)
	}
	return all.String()
}

// TestInstructions looks for what the numerics forbid, and for each target's registers.
func TestInstructions(t *testing.T) {
	emitTools(t)
	plain := samples.Map("plain", 1<<16, dtype.F32, func(x *kern.Expr) *kern.Expr {
		return kern.Sqrt(kern.Div(kern.Add(kern.Mul(x, x), x), x))
	})
	for _, target := range []Target{V3, V4} {
		text := emitAssembly(t, target, plain)
		for _, bad := range []string{"vfmadd", "vfmsub", "vrcp", "vrsqrt", "ldmxcsr"} {
			assert.NotContains(t, text, bad)
		}
		for _, good := range []string{"vmulps", "vaddps", "vdivps", "vsqrtps"} {
			assert.Contains(t, text, good)
		}
	}
	wide := emitAssembly(t, V4, plain)
	assert.Contains(t, wide, "%zmm")
	assert.NotContains(t, wide, "%k1", "a length of whole vectors needs no mask")
	old := emitAssembly(t, V3, samples.Programs()...)
	for _, bad := range []string{"%zmm", "%xmm16", "%ymm16", "%k1", "call"} {
		assert.NotContains(t, old, bad)
	}
	half := samples.Map("rotate", 1<<12, dtype.F32, kern.Neg) // halves of rows of 64
	b := kern.NewBuilder("halves", 64)
	x, y := b.In("x", dtype.F32, 64*64), b.Out("y", dtype.F32, 64*64)
	i := iv("i")
	row := kern.Mul(b.TileIndex(), i64(64))
	from := kern.Select(kern.Lt(get(i), i64(32)), kern.Add(get(i), i64(32)), kern.Sub(get(i), i64(32)))
	b.Do(kern.Lane(i, i64(64), y.Set(kern.Add(row, get(i)), x.At(kern.Add(row, from)))))
	assert.NotContains(t, emitAssembly(t, V4, half, b.K), "gather", "halves are read as vectors")
}

// TestInPlace lets a result lie in its operand's memory.
func TestInPlace(t *testing.T) {
	emitTools(t)
	r := rand.New(rand.NewPCG(8, 8))
	for _, target := range []Target{V3, V4} {
		if !emitRuns(t, target) {
			continue
		}
		ks := []*kern.Kernel{samples.Map("gelu", 5001, dtype.F32, samples.Gelu), samples.Softmax(3, 200, 0.2), samples.Dropout(2048, 4)}
		u := NewUnit(target)
		var ls []Launch
		for _, k := range ks {
			l, err := u.Kernel(k)
			require.NoError(t, err)
			ls = append(ls, l)
		}
		objects, err := u.Compile(t.Context(), t.TempDir())
		require.NoError(t, err)
		lib := emitLink(t, objects)
		for i, k := range ks {
			c := emitCaseOf(k, r)
			x, y := -1, len(k.Params)-1
			var args []unsafe.Pointer
			want := make([][]byte, len(c.bufs))
			for j, b := range c.bufs {
				if k.Params[j].Name == "x" {
					x = j
				}
				want[j] = append([]byte(nil), b...)
				args = append(args, unsafe.Pointer(&b[0]))
			}
			require.NoError(t, kern.Run(k, want, 0, k.Tiles))
			args[y] = args[x]
			args = append(args, unsafe.Pointer(unsafe.SliceData(ls[i].Own)))
			var f emitFunc
			purego.RegisterLibFunc(&f, lib, ls[i].Symbol)
			scratch := make([]byte, 4096)
			f(unsafe.Pointer(&args[0]), 0, k.Tiles, unsafe.Pointer(&scratch[0]))
			require.NoError(t, emitSame(dtype.F32, c.bufs[x], want[y]), k.Name)
		}
	}
}
