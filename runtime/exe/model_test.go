package exe_test

import (
	"math/rand/v2"
	goruntime "runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"reprise/ir/dtype"
	"reprise/runtime/exe"
	"reprise/runtime/internal/fixture"
)

// TestValidate breaks a good model in one place at a time.
func TestValidate(t *testing.T) {
	require.NoError(t, fixture.Train().Validate())
	require.NoError(t, fixture.Control().Validate())
	for _, c := range []struct {
		name string
		do   func(m *exe.Model)
		want string
	}{
		{"name twice", func(m *exe.Model) { m.Values[1].Name = "w" }, `opt "w": a second value of this name`},
		{"no name", func(m *exe.Model) { m.Values[0].Name = "" }, `param "": not a name`},
		{"bytes", func(m *exe.Model) { m.Values[0].Bytes = 12 }, `param "w": f32[256] does not take 12 bytes`},
		{"negative shape", func(m *exe.Model) { m.Values[0].Shape = []int64{-256} }, `param "w": f32[-256] does not take 1024 bytes`},
		{"overflowing shape", func(m *exe.Model) { m.Values[0].Shape = []int64{1 << 40, 1 << 40} }, `does not take 1024 bytes`},
		{"outside", func(m *exe.Model) { m.Values[0].Offset = 1 << 20 }, `param "w": bytes 1048576 to 1049600 do not lie in the arena of 6608 at a multiple of 64`},
		{"misaligned", func(m *exe.Model) { m.Values[5].Offset = 32 }, `input "x": bytes 32 to 4128 do not lie`},
		{"state overlaps", func(m *exe.Model) { m.Values[1].Offset = 64 }, `param "w" overlaps opt "w.m"`},
		{"initial bytes", func(m *exe.Model) { m.Values[0].Data = []byte{1} }, `param "w": 1 initial bytes for 1024`},
		{"feed", func(m *exe.Model) { m.Values[5].Feed = "gamma" }, `input "x": unknown feed "gamma"`},
		{"feed bound", func(m *exe.Model) { m.Values[5].Feed = "uniform_int:0" }, `input "x": feed "uniform_int:0": want a bound from 1 to 2^32`},
		{"feed of state", func(m *exe.Model) { m.Values[0].Feed = "normal" }, `param "w": only inputs have a feed`},
		{"feed's type", func(m *exe.Model) { m.Values[5].Feed = "tokens" }, `input "x": feed "tokens" wants an integer type that holds 255, not f32`},
		{"batch axes", func(m *exe.Model) { m.Values[5].BatchAxes = 3 }, `input "x": 3 batch axes of 2`},
		{"key's type", func(m *exe.Model) { m.Values[3].DType, m.Values[3].Bytes = dtype.I64, 8 }, `key "key" is i64[]`},
		{"state without a beginning", func(m *exe.Model) { m.Init = m.Init[1:] }, `param "w": neither initial bytes nor init fill it from byte 0`},
		{"state half filled", func(m *exe.Model) { m.Init[1].Args[0].Bytes = 512 }, `opt "w.m": neither initial bytes nor init fill it from byte 512`},
		{"arena too large", func(m *exe.Model) { m.ArenaBytes += 64 }, `arena of 6672 bytes, of which no more than 6608 are ever touched`},
		{"loss", func(m *exe.Model) { m.Loss = "w" }, `loss "w" is not a floating output of one element`},
		{"feature", func(m *exe.Model) { m.Features = []string{"mmx2"} }, `unknown CPU feature "mmx2"`},
		{"symbol", func(m *exe.Model) { m.Step[0].Symbol = "a b" }, `step: instruction 0: "a b" is not a symbol`},
		{"driver's symbol", func(m *exe.Model) { m.Step[0].Symbol = "rp_map" }, `"rp_map" is not a symbol`},
		{"argument outside", func(m *exe.Model) { m.Step[0].Args[0].Bytes = 1 << 40 }, `step: instruction 0 (partials): argument 0: bytes 2432 to 1099511630208 do not lie in the arena of 6608`},
		{"constant outside", func(m *exe.Model) { m.Step[2].Args[5].Offset = 64 }, `instruction 2 (update): argument 5: bytes 64 to 68 do not lie in the constant pool of 4`},
		{"constant written", func(m *exe.Model) { m.Step[2].Args[5].Write = true }, `argument 5: writes the constant pool`},
		{"target", func(m *exe.Model) { m.Step[0] = exe.Inst{Kind: exe.Jump, Targets: []int{4}} }, `target 4 of 3 instructions`},
		{"no target", func(m *exe.Model) { m.Step[0] = exe.Inst{Kind: exe.Case, Index: dtype.I32} }, `0 targets`},
		{"index type", func(m *exe.Model) { m.Step[0] = exe.Inst{Kind: exe.Case, Index: dtype.U8, Targets: []int{1}} }, `index of type u8: want i32 or i64`},
		{"no wait", func(m *exe.Model) { m.Step[1].Wait = false }, `step: instruction 1 (finish) touches bytes 6592 to 6608 of the arena without waiting for instruction 0 (partials)`},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := fixture.Train()
			c.do(m)
			require.ErrorContains(t, m.Validate(), c.want)
		})
	}
	t.Run("feed does not fit its type", func(t *testing.T) {
		m := fixture.LM(":2147483648")
		require.NoError(t, m.Validate())
		require.ErrorContains(t, fixture.LM(":2147483649").Validate(), `feed "tokens:2147483649" wants an integer type that holds 2147483648, not i32`)
	})
	t.Run("jump's target does not wait", func(t *testing.T) {
		m := fixture.Control()
		m.Step[2].Wait = false
		require.ErrorContains(t, m.Validate(), "instruction 2 is a jump's target and does not wait")
	})
}

// TestPlaceWaits checks the rule on the cases that differ.
func TestPlaceWaits(t *testing.T) {
	a, b := exe.Arg{Offset: 0, Bytes: 64}, exe.Arg{Offset: 64, Bytes: 64}
	both := exe.Arg{Offset: 0, Bytes: 128}
	w := fixture.W
	l := func(tiles int64, args ...exe.Arg) exe.Inst { return fixture.Launch("k", tiles, args...) }
	for _, c := range []struct {
		name string
		prog []exe.Inst
		want string // one letter an instruction: w waits
	}{
		{"read after write", []exe.Inst{l(2, w(a)), l(2, a)}, ".w"},
		{"write after read", []exe.Inst{l(2, a), l(2, w(a))}, ".w"},
		{"write after write", []exe.Inst{l(2, w(a)), l(2, w(a))}, ".w"},
		{"read after read", []exe.Inst{l(2, a), l(2, a)}, ".."},
		{"apart", []exe.Inst{l(2, w(a)), l(2, w(b)), l(2, both), l(2, both)}, "..w."},
		{"one tile each: one worker", []exe.Inst{l(1, w(a)), l(1, a), l(1, w(a)), l(2, a)}, "...w"},
		{"an earlier wait serves", []exe.Inst{l(2, w(a)), l(2, w(b)), l(2, a), l(2, b)}, "..w."},
		{"constants", []exe.Inst{l(2, w(a)), l(2, exe.Arg{Const: true, Bytes: 64})}, ".."},
		{"no tiles", []exe.Inst{l(0, w(a)), l(2, a)}, ".."},
		{"predicate", []exe.Inst{l(1, w(a)), {Kind: exe.BranchIfFalse, Pred: a, Targets: []int{3}}, l(1, w(a)), l(1, b)}, ".www"},
		{"loop", []exe.Inst{l(1, a), {Kind: exe.Jump, Targets: []int{0}}}, "w."},
	} {
		t.Run(c.name, func(t *testing.T) {
			exe.PlaceWaits(c.prog)
			var got strings.Builder
			for _, in := range c.prog {
				got.WriteByte(map[bool]byte{true: 'w', false: '.'}[in.Wait])
			}
			require.Equal(t, c.want, got.String())
		})
	}
}

// plainWaits says the rule as it is defined, two launches at a time: which of a straight program's wait.
func plainWaits(prog []exe.Inst) []bool {
	waits := make([]bool, len(prog))
	from := 0 // nothing before is in flight
	for i, in := range prog {
		for _, old := range prog[from:i] {
			for _, a := range in.Args {
				for _, b := range old.Args {
					waits[i] = waits[i] || (a.Write || b.Write) && a.Offset < b.Offset+b.Bytes && b.Offset < a.Offset+a.Bytes &&
						in.Tiles*old.Tiles > 1
				}
			}
		}
		if waits[i] {
			from = i
		}
	}
	return waits
}

// TestPlaceWaitsIsMinimal: on random straight programs, what PlaceWaits gives is what the rule says and
// is accepted, and taking any one wait away is refused.
func TestPlaceWaitsIsMinimal(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		b := fixture.New("random", false)
		b.Model.ArenaBytes = 64 * 8
		b.Model.Init = []exe.Inst{fixture.Launch("k", 1, exe.Arg{Bytes: 64 * 8})}
		for range 1 + r.IntN(24) {
			var args []exe.Arg
			for range r.IntN(4) {
				lo := r.Int64N(8)
				args = append(args, exe.Arg{Offset: lo * 64, Bytes: 64 * (1 + r.Int64N(8-lo)), Write: r.IntN(3) == 0})
			}
			b.Model.Step = append(b.Model.Step, fixture.Launch("k", r.Int64N(3), args...))
		}
		m := b.Done()
		require.NoError(t, m.Validate())
		for i, want := range plainWaits(m.Step) {
			require.Equal(t, want, m.Step[i].Wait, "instruction %d", i)
		}
		for i := range m.Step {
			if m.Step[i].Wait {
				m.Step[i].Wait = false
				require.Error(t, m.Validate())
				m.Step[i].Wait = true
			}
		}
	}
}

// TestPlaceWaitsOfMany: where nothing waits, everything stays in flight. Eight times as many launches take about eight
// times as long, not 64 times.
func TestPlaceWaitsOfMany(t *testing.T) {
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	used := func() time.Duration { // by this thread
		const thread = 3 // CLOCK_THREAD_CPUTIME_ID
		var ts syscall.Timespec
		_, _, err := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, thread, uintptr(unsafe.Pointer(&ts)), 0)
		require.Zero(t, err)
		return time.Duration(ts.Nano())
	}
	least := func(n int64) time.Duration {
		var prog []exe.Inst
		for i := range n {
			prog = append(prog, fixture.Launch("k", 2, exe.Arg{Bytes: 64}, fixture.W(exe.Arg{Offset: 64 * (i + 1), Bytes: 64})))
		}
		best := time.Hour
		for range 3 {
			start := used()
			exe.PlaceWaits(prog)
			best = min(best, used()-start)
		}
		require.False(t, slices.ContainsFunc(prog, func(in exe.Inst) bool { return in.Wait }))
		return best
	}
	few, many := least(3000), least(24000)
	require.Less(t, many, 30*few, "%v for 3,000, %v for 24,000", few, many)
	t.Logf("%v for 3,000, %v for 24,000", few, many)
}
