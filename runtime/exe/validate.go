package exe

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"reprise/ir/dtype"
)

// Limits of the driver.
const (
	maxRank    = 16
	maxThreads = 1024
)

// feed is a parsed Value.Feed.
type feed struct {
	kind string // as in the grammar of Value.Feed; "" for none
	k    int64  // 0: not given
}

// cName is the driver's enumerator.
func (f feed) cName() string {
	if f.kind == "" {
		return "RP_FEED_NONE"
	}
	return "RP_FEED_" + strings.ToUpper(f.kind)
}

// max is the largest integer of a feed of integers, −1 for others. Bytes, if
// nothing is said.
func (f feed) max() int64 {
	switch f.kind {
	case "tokens", "targets", "uniform_int":
		if f.k == 0 {
			return 255
		}
		return f.k - 1
	}
	return -1
}

// maxInt is the largest number of an integer type, or of i64 where that is less.
func maxInt(t dtype.Type) int64 {
	bits := t.Size() * 8
	if t.IsSigned() {
		bits--
	}
	return 1<<min(bits, 63) - 1
}

func parseFeed(s string) (feed, error) {
	kind, arg, has := strings.Cut(s, ":")
	f := feed{kind: kind}
	if has {
		k, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || k < 1 || k > 1<<32 {
			return f, fmt.Errorf("feed %q: want a bound from 1 to 2^32 after the colon", s)
		}
		f.k = k
	}
	switch kind {
	case "tokens", "targets":
		return f, nil
	case "uniform_int":
		if !has {
			return f, fmt.Errorf("feed %q lacks its bound, uniform_int:K", s)
		}
		return f, nil
	case "", "normal", "uniform", "zeros":
		if has {
			return f, fmt.Errorf("feed %q takes no bound", s)
		}
		return f, nil
	}
	return f, fmt.Errorf("unknown feed %q", s)
}

// elements is the product of a shape, −1 if it overflows or an axis is negative.
func elements(shape []int64) int64 {
	n := int64(1)
	for _, s := range shape {
		if s < 0 || (s > 0 && n > (1<<62)/s) {
			return -1
		}
		n *= s
	}
	return n
}

// Validate checks what the driver relies on and does not check again: names,
// extents within the arena, state that does not overlap, targets of jumps, and a
// wait between any two instructions that depend on each other. An error is a bug of
// whoever made the model.
func (m *Model) Validate() error {
	if err := m.validateValues(); err != nil {
		return fmt.Errorf("model %s: %w", m.Name, err)
	}
	for _, p := range []struct {
		name string
		prog []Inst
	}{{"init", m.Init}, {"step", m.Step}} {
		if err := m.validateProgram(p.prog); err != nil {
			return fmt.Errorf("model %s: %s: %w", m.Name, p.name, err)
		}
	}
	if err := m.validateOps(); err != nil {
		return fmt.Errorf("model %s: %w", m.Name, err)
	}
	if err := m.validateInit(); err != nil {
		return fmt.Errorf("model %s: %w", m.Name, err)
	}
	if high := m.HighestByte(); m.ArenaBytes-high >= Align { // the promise is exact
		return fmt.Errorf("model %s: arena of %d bytes, of which no more than %d are ever touched", m.Name, m.ArenaBytes, high)
	}
	for _, f := range m.Features {
		if !slices.Contains(KnownFeatures(), f) {
			return fmt.Errorf("model %s: unknown CPU feature %q: want one of %v", m.Name, f, KnownFeatures())
		}
	}
	if m.Train {
		loss := m.Find(m.Loss)
		if loss == nil || loss.Role != RoleOutput || !loss.DType.IsFloat() || elements(loss.Shape) != 1 {
			return fmt.Errorf("model %s: loss %q is not a floating output of one element", m.Name, m.Loss)
		}
	}
	return nil
}

// feeds is what an input may be fed with.
const feeds = "feeds are normal, uniform, zeros, uniform_int:K, tokens and targets; without one the input is given as a file"

// theirs is a fault of the model's text rather than of whoever compiled it.
func theirs(v *Value, hint, format string, args ...any) error {
	return &Error{Code: "model", Message: fmt.Sprintf(format, args...), Layer: v.Layer, Hint: hint}
}

// validateOps checks that the runs of ops lie in the program, nested or apart, and that instructions
// and runs name each other.
func (m *Model) validateOps() error {
	n := len(m.Step)
	for i, r := range m.Ops {
		if r.First < 0 || r.Last < r.First || r.Last >= n || r.Entry < r.First || r.Entry > r.Last || r.Repeat < -1 || r.Repeat > r.Last || r.Op < 0 || r.Sub < 0 || r.Clone < 0 {
			return fmt.Errorf("op run %d (%s): instructions %d to %d, entry %d, repeat %d, of a program of %d", i, r.Name, r.First, r.Last, r.Entry, r.Repeat, n)
		}
		if m.Step[r.Entry].Run != i+1 || r.Repeat >= 0 && m.Step[r.Repeat].Run != i+1 {
			return fmt.Errorf("op run %d (%s): instruction %d is another's", i, r.Name, r.Entry)
		}
	}
	for i, in := range m.Step {
		if in.Run < 0 || in.Run > len(m.Ops) || in.Run > 0 && (i < m.Ops[in.Run-1].First || i > m.Ops[in.Run-1].Last) {
			return fmt.Errorf("instruction %d (%s) belongs to op run %d, which is elsewhere", i, in.Symbol, in.Run-1)
		}
	}
	return nil
}

// HighestByte is the end of the highest byte that a value or an argument covers.
// ArenaBytes must be that, or up to Align−1 more.
func (m *Model) HighestByte() int64 {
	var high int64
	for _, v := range m.Values {
		high = max(high, v.Offset+v.Bytes)
	}
	for _, prog := range [][]Inst{m.Init, m.Step} {
		for i := range prog {
			for _, a := range accesses(i, &prog[i]) {
				high = max(high, a.hi)
			}
		}
	}
	return high
}

func (m *Model) validateValues() error {
	names := make(map[string]bool, len(m.Values))
	var state []Value
	for _, v := range m.Values {
		where := fmt.Sprintf("%s %q", v.Role, v.Name)
		if v.Name == "" || strings.ContainsRune(v.Name, 0) || v.Name == "__metadata__" {
			return theirs(&v, "give it another name", "%s: not a name", where)
		}
		if names[v.Name] {
			return theirs(&v, "a result with the name of state is its new value; give this one another name", "%s: a second value of this name", where)
		}
		names[v.Name] = true
		n := elements(v.Shape)
		if len(v.Shape) > maxRank || n < 0 || v.DType.Size() == 0 || n > (1<<62)/v.DType.Size() || v.Bytes != n*v.DType.Size() {
			return fmt.Errorf("%s: %s%v does not take %d bytes", where, v.DType, v.Shape, v.Bytes)
		}
		if v.Offset < 0 || v.Offset%Align != 0 || v.Offset+v.Bytes > m.ArenaBytes {
			return fmt.Errorf("%s: bytes %d to %d do not lie in the arena of %d at a multiple of %d", where, v.Offset, v.Offset+v.Bytes, m.ArenaBytes, Align)
		}
		if v.Data != nil && (!v.Role.IsState() || int64(len(v.Data)) != v.Bytes) {
			return fmt.Errorf("%s: %d initial bytes for %d", where, len(v.Data), v.Bytes)
		}
		f, err := parseFeed(v.Feed)
		if err != nil {
			return theirs(&v, feeds, "%s: %v", where, err)
		}
		if v.Feed != "" && v.Role != RoleInput {
			return theirs(&v, feeds, "%s: only inputs have a feed", where)
		}
		if (f.kind == "normal" || f.kind == "uniform") && !v.DType.IsFloat() {
			return theirs(&v, feeds, "%s: feed %q wants a floating type, not %s", where, v.Feed, v.DType)
		}
		if (f.kind == "tokens" || f.kind == "targets") && len(v.Shape) == 0 {
			return theirs(&v, feeds, "%s: feed %q wants an array", where, v.Feed)
		}
		if max := f.max(); max >= 0 && (!v.DType.IsInt() || max > maxInt(v.DType)) {
			return theirs(&v, feeds, "%s: feed %q wants an integer type that holds %d, not %s", where, v.Feed, max, v.DType)
		}
		if v.BatchAxes < 0 || v.BatchAxes > len(v.Shape) {
			return fmt.Errorf("%s: %d batch axes of %d", where, v.BatchAxes, len(v.Shape))
		}
		switch {
		case v.Role > RoleStep:
			return fmt.Errorf("%s: unknown role", where)
		case v.Role == RoleKey && (v.DType != dtype.Key || n != 1), v.Role == RoleStep && (v.DType != dtype.I64 || n != 1):
			return fmt.Errorf("%s is %s%v", where, v.DType, v.Shape)
		case v.Role != RoleKey && v.DType == dtype.Key:
			return fmt.Errorf("%s cannot be a key", where)
		case v.Role.IsState():
			state = append(state, v)
		}
	}
	slices.SortFunc(state, func(a, b Value) int { return cmp.Compare(a.Offset, b.Offset) })
	for i := 1; i < len(state); i++ {
		if a, b := state[i-1], state[i]; a.Offset+a.Bytes > b.Offset {
			return fmt.Errorf("%s %q overlaps %s %q", a.Role, a.Name, b.Role, b.Name)
		}
	}
	return nil
}

// validateInit checks that all state has a beginning: an instance that is reset
// must not keep anything of its former life.
func (m *Model) validateInit() error {
	type extent struct{ lo, hi int64 }
	var written []extent
	for i := range m.Init {
		for _, a := range accesses(i, &m.Init[i]) {
			if a.write {
				written = append(written, extent{a.lo, a.hi})
			}
		}
	}
	slices.SortFunc(written, func(a, b extent) int { return cmp.Compare(a.lo, b.lo) })
	var filled []extent // written, as stretches that do not touch
	for _, w := range written {
		if n := len(filled); n > 0 && w.lo <= filled[n-1].hi {
			filled[n-1].hi = max(filled[n-1].hi, w.hi)
		} else {
			filled = append(filled, w)
		}
	}
	for _, v := range m.Values {
		if !v.Role.IsState() || v.Data != nil {
			continue
		}
		at := v.Offset
		if i := sort.Search(len(filled), func(i int) bool { return filled[i].hi > at }); i < len(filled) && filled[i].lo <= at {
			at = filled[i].hi
		}
		if at < v.Offset+v.Bytes {
			return theirs(&v, "let @init return it by its name, or give it role=\"input\" if it comes from outside", "%s %q: neither initial bytes nor init fill it from byte %d", v.Role, v.Name, at-v.Offset)
		}
	}
	return nil
}

func (m *Model) validateArg(a Arg) error {
	limit, where := m.ArenaBytes, "arena"
	if a.Const {
		limit, where = int64(len(m.Consts)), "constant pool"
		if a.Write {
			return fmt.Errorf("writes the constant pool")
		}
	}
	if a.Offset < 0 || a.Offset%Align != 0 || a.Bytes < 0 || a.Offset > limit-a.Bytes {
		return fmt.Errorf("bytes %d to %d do not lie in the %s of %d at a multiple of %d", a.Offset, a.Offset+a.Bytes, where, limit, Align)
	}
	return nil
}

func (m *Model) validateProgram(prog []Inst) error {
	for i, in := range prog {
		where := fmt.Sprintf("instruction %d (%s)", i, in.Symbol)
		want := 0
		switch in.Kind {
		case Launch:
			if !isSymbol(in.Symbol) {
				return fmt.Errorf("instruction %d: %q is not a symbol", i, in.Symbol)
			}
			if in.Tiles < 0 || in.Tiles > 1<<62/maxThreads {
				return fmt.Errorf("%s: %d tiles", where, in.Tiles)
			}
			for k, a := range in.Args {
				if err := m.validateArg(a); err != nil {
					return fmt.Errorf("%s: argument %d: %w", where, k, err)
				}
			}
		case Print:
			if len(in.Args) == 0 || !in.Args[0].Const {
				return fmt.Errorf("%s: no description", where)
			}
			for k, a := range in.Args {
				if err := m.validateArg(a); err != nil || a.Write {
					return fmt.Errorf("%s: argument %d: writes %t: %w", where, k, a.Write, err)
				}
			}
		case Check:
			if err := m.validateArg(in.Pred); err != nil {
				return fmt.Errorf("%s: predicate: %w", where, err)
			}
		case Jump:
			want = 1
		case BranchIfFalse:
			want = 1
			if err := m.validateArg(in.Pred); err != nil {
				return fmt.Errorf("%s: predicate: %w", where, err)
			}
		case Case:
			want = max(1, len(in.Targets))
			if in.Index != dtype.I32 && in.Index != dtype.I64 {
				return fmt.Errorf("%s: index of type %s: want i32 or i64", where, in.Index)
			}
			if err := m.validateArg(in.Pred); err != nil {
				return fmt.Errorf("%s: index: %w", where, err)
			}
		default:
			return fmt.Errorf("%s: unknown kind %d", where, in.Kind)
		}
		if len(in.Targets) != want {
			return fmt.Errorf("%s: %d targets", where, len(in.Targets))
		}
		for _, t := range in.Targets {
			if t < 0 || t > len(prog) {
				return fmt.Errorf("%s: target %d of %d instructions", where, t, len(prog))
			}
		}
	}
	return checkWaits(prog)
}

// isSymbol reports whether s is a C identifier, which it will stand as in the
// generated tables. Names of the driver (rp_, reprise_) are taken.
func isSymbol(s string) bool {
	for i, c := range []byte(s) {
		if !(c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || i > 0 && '0' <= c && c <= '9') {
			return false
		}
	}
	return s != "" && s != "main" && !strings.HasPrefix(s, "rp_") && !strings.HasPrefix(s, "reprise_")
}

// KnownFeatures lists the CPU features that the driver can check for, the names
// being those of LLVM's target features.
func KnownFeatures() []string {
	return []string{
		"sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "movbe", "fma", "avx", "f16c", "lzcnt", "sse4a", "bmi", "avx2", "bmi2", "sha",
		"avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl", "avx512ifma", "avx512vbmi", "avx512vbmi2", "avx512vnni",
		"avx512bitalg", "avx512vpopcntdq", "avx512fp16", "avx512bf16", "avxvnni", "amx-bf16", "amx-tile", "amx-int8",
	}
}
