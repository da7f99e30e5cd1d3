package cpu

import (
	"context"
	"encoding/binary"
	"math"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"reprise/codegen/internal/samples"
	"reprise/ir/kern"
)

// TestP008: random bits recomputed from one key were others where the compiler had cut the recomputation differently
// (jax-ml/jax#21046; threads, fusion and budgets: internal/reports). A mask is the definition's in vectors of 4, 8 and 16
// lanes, with the tiles cut as 1, 3 and 16 threads cut them.
func TestP008(t *testing.T) {
	emitTools(t)
	const n, id = 64 * 256, 7
	key := [4]uint32{11, 3, 5, 2}
	want := samples.Kept(key, id, n)
	kernel := samples.Dropout(n, id)
	require.NoError(t, kern.Check(kernel))
	for _, lanes := range []int{4, 8, 16} {
		target := V3
		if lanes == 16 {
			target = V4
		}
		if !emitRuns(t, target) {
			t.Logf("this machine has no vectors of %d lanes", lanes)
			continue
		}
		u := NewUnit(target)
		u.lanes = lanes
		l, err := u.Kernel(kernel)
		require.NoError(t, err)
		require.Contains(t, u.Modules()[0], map[int]string{4: "<4 x float>", 8: "<8 x float>", 16: "<16 x float>"}[lanes])
		objects, err := u.Compile(context.Background(), t.TempDir())
		require.NoError(t, err)
		var f emitFunc
		purego.RegisterLibFunc(&f, emitLink(t, objects), l.Symbol)
		_, keys := emitGuarded(make([]byte, 16))
		for i, w := range key {
			binary.LittleEndian.PutUint32(keys[4*i:], w)
		}
		_, x := emitGuarded(make([]byte, 4*n))
		for i := range n {
			binary.LittleEndian.PutUint32(x[4*i:], math.Float32bits(1))
		}
		_, scratch := emitGuarded(make([]byte, ScratchBytes))
		for _, threads := range []int64{1, 3, 16} {
			_, y := emitGuarded(make([]byte, 4*n))
			args := []unsafe.Pointer{unsafe.Pointer(&keys[0]), unsafe.Pointer(&x[0]), unsafe.Pointer(&y[0]), unsafe.Pointer(unsafe.SliceData(l.Own))}
			for w := threads - 1; w >= 0; w-- {
				if lo, hi := w*l.Tiles/threads, (w+1)*l.Tiles/threads; lo < hi {
					f(unsafe.Pointer(&args[0]), lo, hi, unsafe.Pointer(&scratch[0]))
				}
			}
			for i, keep := range want {
				got := math.Float32frombits(binary.LittleEndian.Uint32(y[4*i:]))
				require.Equal(t, keep, got != 0, "element %d, %d lanes, %d threads", i, lanes, threads)
				require.True(t, got == 0 || got == 1.25)
			}
		}
	}
}
