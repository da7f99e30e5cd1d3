package exe_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/ir/dtype"
	"reprise/runtime/exe"
	"reprise/runtime/internal/fixture"
)

// barriers is a model of n launches that do next to nothing, each of which waits for
// the one before.
func barriers(n int) *exe.Model {
	b := fixture.New("barriers", true)
	x := b.Value(exe.RoleBuffer, "x", dtype.U8, "", 256)
	y := b.Value(exe.RoleBuffer, "y", dtype.U8, "", 256)
	loss := b.Value(exe.RoleOutput, "loss", dtype.F32, "")
	b.Model.Loss = "loss"
	b.Model.Init = []exe.Inst{fixture.Launch("zero", 1, fixture.W(x)), fixture.Launch("zero", 1, fixture.W(y))}
	for i := range n {
		from, to := x, y
		if i%2 == 1 {
			from, to = y, x
		}
		b.Model.Step = append(b.Model.Step, fixture.Launch("copy", 256, from, fixture.W(to)))
	}
	b.Model.Step = append(b.Model.Step, fixture.Launch("copy", 4, x, fixture.W(loss)))
	return b.Done()
}

// TestBarriers: a long program on more threads than there are CPUs comes to an end.
func TestBarriers(t *testing.T) {
	p := buildProgram(t, barriers(500))
	for _, threads := range []string{"1", "2", "5", "32"} {
		require.Len(t, p.lines("--steps", "3", "--threads", threads), 4)
	}
}

// BenchmarkBarrier gives what a launch and its barrier cost, the least and the median.
func BenchmarkBarrier(b *testing.B) {
	const n = 2000
	p := program{b, "", b.TempDir()}
	p.path = b.TempDir() + "/barriers"
	s, err := compileShared()
	require.NoError(b, err)
	require.NoError(b, s.driver.Build(b.Context(), barriers(n), []string{s.kernels}, p.path))
	for _, threads := range []string{"1", "2", "3"} {
		b.Run(fmt.Sprint(threads, " threads"), func(b *testing.B) {
			p.t = b
			var ns []float64
			for b.Loop() {
				ls := p.lines("--steps", "100", "--threads", threads)
				for _, l := range ls[:len(ls)-1] {
					ns = append(ns, l.MS*1e6/n)
				}
			}
			slices.Sort(ns)
			b.ReportMetric(ns[0], "ns/launch-least")
			b.ReportMetric(ns[len(ns)/2], "ns/launch-median")
		})
	}
}
