package pinned_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/ir"
	"reprise/ir/ops"
	"reprise/passes/pinned"
)

// pins parses the body of @step (parameters %x: f32[8], %i: i32[8], %k: key[], %t: f32[4,8]) and gives "layer kind"
// of every pinned op, in order.
func pins(t *testing.T, body string) []string {
	t.Helper()
	src := "module \"m\"\nfunc @step(%x: f32[8], %i: i32[8], %k: key[], %t: f32[4,8]) -> (y) {\n" + body + "\n}\n"
	m, err := ir.Parse(ops.Table(), "test.ir", src)
	require.NoError(t, err)
	require.NoError(t, ir.Verify(m))
	f := m.Func("step")
	got := pinned.Of(f.Body)
	var out []string
	for _, op := range f.Body.Ops {
		if p, ok := got[op]; ok {
			out = append(out, op.Loc.Layer+" "+[...]string{pinned.Effect: "effect", pinned.Order: "order", pinned.Choice: "choice"}[p.Kind])
			assert.NotEmpty(t, p.Why)
		}
	}
	return out
}

func TestPins(t *testing.T) {
	const (
		compare = `
  %c = constant {value=dense(f32[8]: splat 0)} : f32[8] loc(zero)
  %m = compare %x, %c {dir="gt"} : bool[8] loc(decide)`
		count = compare + `
  %n = convert %m {to=i32} : i32[8] loc(derived)
  %s = reduce %n {axes=[0], kind="sum"} : i32[] loc(derived)`
		scalar = compare + `
  %a = reduce %m {axes=[0], kind="and"} : bool[] loc(derived)`
	)
	for _, c := range []struct {
		name, body string
		want       []string
	}{
		{"a mask used element by element", compare + "\n  %y = select %m, %x, %c : f32[8] loc(y)\n  return %y", nil},
		{"an index from data", "  %y = take %t, %i {axis=0} : f32[8,8] loc(y)\n  return %y", nil},
		{"an index from a comparison", compare + "\n  %n = convert %m {to=i32} : i32[8] loc(derived)\n  %y = take %t, %n {axis=0} : f32[8,8] loc(y)\n  return %y", []string{"decide choice"}},
		{"an index from rounding", "  %n = convert %x {to=i32} : i32[8] loc(round)\n  %y = take %t, %n {axis=0} : f32[8,8] loc(y)\n  return %y", []string{"round choice"}},
		{"an index through a reshape and arithmetic", compare + `
  %n = convert %m {to=i32} : i32[8] loc(derived)
  %r = reshape %n {shape=[2,4]} : i32[2,4] loc(derived)
  %z = add %r, %r : i32[2,4] loc(derived)
  %y = take %t, %z {axis=0} : f32[2,4,8] loc(y)
  return %y`, []string{"decide choice"}},
		{"a drawn index", "  %b = rng_bits %k {rng=1, shape=[8]} : u32[8] !keyed loc(draw)\n  %y = take %t, %b {axis=0} : f32[8,8] loc(y)\n  return %y", nil},
		{"a number of turns", count + `
  %y, %end = while %x, %s : f32[8], i32[] loc(loop) (%u: f32[8], %left: i32[]) {
    %z = constant {value=dense(i32[]: 0)} : i32[] loc(loop)
    %go = compare %left, %z {dir="gt"} : bool[] loc(loop)
    yield %go
  } (%v: f32[8], %rest: i32[]) {
    %one = constant {value=dense(i32[]: 1)} : i32[] loc(loop)
    %next = sub %rest, %one : i32[] loc(loop)
    %w = neg %v : f32[8] loc(loop)
    yield %w, %next
  }
  return %y`, []string{"decide choice"}},
		{"a loop that ends by its data", `
  %y = while %x : f32[8] loc(loop) (%u: f32[8]) {
    %z = constant {value=dense(f32[]: 9)} : f32[] loc(loop)
    %s = reduce %u {axes=[0], kind="max"} : f32[] loc(loop)
    %go = compare %s, %z {dir="lt"} : bool[] loc(loop)
    yield %go
  } (%v: f32[8]) {
    %w = add %v, %v : f32[8] loc(loop)
    yield %w
  }
  return %y`, []string{"loop choice"}},
		{"a branch", scalar + `
  %y = if %a, %x : f32[8] loc(branch) (%u: f32[8]) {
    yield %u
  } (%v: f32[8]) {
    %n = neg %v : f32[8] loc(branch)
    yield %n
  }
  return %y`, []string{"decide choice"}},
		{"a branch that yields an index", `
  %p = constant {value=dense(bool[]: true)} : bool[] loc(p)
  %n = if %p, %x : i32[8] loc(branch) (%u: f32[8]) {
    %f = convert %u {to=i32} : i32[8] loc(branch)
    yield %f
  } (%v: f32[8]) {
    %z = constant {value=dense(i32[8]: splat 0)} : i32[8] loc(branch)
    yield %z
  }
  %y = take %t, %n {axis=0} : f32[8,8] loc(y)
  return %y`, []string{"branch choice"}},
		{"by their rows", `
  %v, %n = top_k %x {k=2} : f32[2], i32[2] !decides loc(top)
  %h = histogram %n {bins=4} : i32[4] !decides loc(hist)
  %o = argsort %h {axis=0} : i32[4] !decides loc(sort)
  %f = foreign %v {results=strs["f32[2]"], symbol="f"} : f32[2] !unknown loc(foreign)
  %e = foreign %f {determinism="exact", effect="host", results=strs["f32[2]"], symbol="f"} : f32[2] !host loc(host)
  %c = all_reduce %e : f32[2] !comm loc(comm)
  %q = foreign %c {determinism="exact", results=strs["f32[2]"], symbol="f"} : f32[2] loc(exact)
  %d = dropout %q, %k {p=0.5, rng=3} : f32[2] !keyed loc(drop)
  return %d`, []string{"top choice", "hist choice", "sort choice", "foreign order", "host effect", "comm effect"}},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			assert.Equal(t, c.want, pins(t, c.body))
		})
	}
}

// Whatever reads an index, a count or a predicate says so in its row.
func TestRoutesAreDeclared(t *testing.T) {
	for _, d := range ops.Table().All() {
		for i, name := range d.Operands {
			name = strings.TrimRight(name, "?…")
			routing := slices.Contains([]string{"idx", "counts", "starts", "pred", "index", "first"}, name)
			if d.Name == "select" || d.Name == "assert" { // element by element; nothing follows
				routing = false
			}
			if !routing {
				continue
			}
			require.NotNil(t, d.Routes, "%s reads %q", d.Name, name)
			probe := &ir.Op{Def: d, Operands: make([]*ir.Value, len(d.Operands))}
			assert.Contains(t, d.Routes(probe), i, d.Name)
		}
	}
}
