package exe

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"reprise/ir/dtype"
)

// tables is the generated C source of a model and the binary data beside it.
type tables struct {
	c       string // model.c
	asm     string // data.s, which includes the three files below
	weights []byte // initial bytes of state
}

// Names of the data files that data.s includes.
const (
	constsFile   = "consts.bin"
	weightsFile  = "weights.bin"
	describeFile = "describe.json"
)

// cString quotes s as a C string literal; any byte but a NUL may be in it.
func cString(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range []byte(s) {
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < 0x20 || c >= 0x7f || c == '?': // no trigraphs
			fmt.Fprintf(&b, "\\%03o", c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// numbers writes a C array of integers, a few a line; never empty, as C wants.
func numbers[T int32 | int64](b *strings.Builder, typ, name string, xs []T) {
	fmt.Fprintf(b, "static const %s %s[] = {", typ, name)
	for i, x := range xs {
		if i%16 == 0 {
			b.WriteString("\n    ")
		}
		fmt.Fprintf(b, "%d, ", x)
	}
	if len(xs) == 0 {
		b.WriteString("0")
	}
	b.WriteString("};\n")
}

func (a Arg) encode() int64 {
	if a.Const {
		return ^a.Offset
	}
	return a.Offset
}

// makeTables writes the model as the driver's C tables. Values stand in the
// byte order of their names, which is the order of the state's hash.
func makeTables(m *Model) tables {
	var t tables
	var b strings.Builder
	b.WriteString("/* Generated. */\n#include \"rp.h\"\n\n")

	for _, d := range dtype.All() { // element types go to the driver by number
		name := strings.ToUpper(d.String())
		if d == dtype.Key {
			name = "KEYTYPE"
		}
		fmt.Fprintf(&b, "_Static_assert(RP_%s == %d, \"element types\");\n", name, d)
	}
	b.WriteString("\n")
	symbols := map[string]bool{}
	for _, prog := range [][]Inst{m.Init, m.Step} {
		for _, in := range prog {
			if in.Kind == Launch && !in.Foreign && !symbols[in.Symbol] {
				symbols[in.Symbol] = true
				fmt.Fprintf(&b, "rp_kernel %s;\n", in.Symbol)
			}
		}
	}

	values := slices.Clone(m.Values)
	slices.SortFunc(values, func(a, b Value) int { return strings.Compare(a.Name, b.Name) })
	var shapes []int64
	var rows strings.Builder
	loss := -1
	for i, v := range values {
		if m.Train && v.Name == m.Loss {
			loss = i
		}
		f, err := parseFeed(v.Feed)
		if err != nil {
			panic("BUG: feed not validated: " + err.Error())
		}
		batch := v.BatchAxes
		if batch == 0 {
			batch = min(1, len(v.Shape))
		}
		data := int64(-1)
		if v.Data != nil {
			for len(t.weights)%Align != 0 {
				t.weights = append(t.weights, 0)
			}
			data = int64(len(t.weights))
			t.weights = append(t.weights, v.Data...)
		}
		fmt.Fprintf(&rows, "    {%s, %s, RP_%s, %d, %d, %d, %s, %d, shapes + %d, %d, %d, %d},\n", cString(v.Name), cString(v.Layer),
			strings.ToUpper(v.Role.String()), v.DType, len(v.Shape), batch, f.cName(), f.k, len(shapes), v.Offset, v.Bytes, data)
		shapes = append(shapes, v.Shape...)
	}
	numbers(&b, "int64_t", "shapes", shapes)
	fmt.Fprintf(&b, "static const rp_value values[] = {\n%s    {0}};\n\n", rows.String())

	foreign := foreignTable(&b, m)
	loader := "NULL"
	if len(foreign) > 0 {
		loader = "&rp_foreign_loader"
	}
	program(&b, "init", m.Init, foreign)
	program(&b, "step", m.Step, foreign)

	opTable(&b, m.Ops)

	b.WriteString("static const char *const features[] = {")
	for _, f := range m.Features {
		b.WriteString(cString(f) + ", ")
	}
	b.WriteString("NULL};\n")
	b.WriteString("extern const char *const rp_consts, *const rp_weights; /* data.s */\n\n")
	fmt.Fprintf(&b, `const rp_model rp_the_model = {
    .name = %s, .target = %s, .input_sha256 = %s,
    .features = features, .train = %t, .loss = %d,
    .values = values, .nvalues = %d,
    .init = {init_insts, %d, init_args, sizeof init_args / sizeof init_args[0]},
    .step = {step_insts, %d, step_args, sizeof step_args / sizeof step_args[0]},
    .ops = ops, .nops = %d, .arena_bytes = %d, .resident_bytes = %d,
    .consts = &rp_consts, .weights = &rp_weights,
    .foreign = foreign, .nforeign = %d, .loader = %s, .library_dir = %s,
};
`, cString(m.Name), cString(m.Target), cString(m.InputSHA256), m.Train, loss, len(values), len(m.Init), len(m.Step), len(m.Ops), m.ArenaBytes, m.ResidentBytes, len(foreign), loader, cString(m.LibraryDir))
	t.c = b.String()

	// Large sections: constants and weights may be out of reach of 32-bit
	// displacements, so they come last and are reached by pointers.
	t.asm = fmt.Sprintf(`.section .lrodata, "al", @progbits
.balign 4096
consts:
.incbin "%s"
.balign 4096
weights:
.incbin "%s"
.byte 0
.section %s, "a", @progbits
.globl rp_description
.hidden rp_description
rp_description:
.incbin "%s"
.byte 0
.section .data.rel.ro, "aw", @progbits
.balign 8
.globl rp_consts, rp_weights
.hidden rp_consts, rp_weights
rp_consts: .quad consts
rp_weights: .quad weights
.section .note.GNU-stack, "", @progbits
`, constsFile, weightsFile, section, describeFile)
	return t
}

// foreignID tells foreign functions apart.
type foreignID struct{ library, symbol string }

// foreignTable writes the foreign functions that a model calls and returns the number of each, from 1.
func foreignTable(b *strings.Builder, m *Model) map[foreignID]int {
	number := map[foreignID]int{}
	b.WriteString("static const rp_foreign foreign[] = {\n")
	for _, prog := range [][]Inst{m.Init, m.Step} {
		for _, in := range prog {
			id := foreignID{in.Library, in.Symbol}
			if in.Kind == Launch && in.Foreign && number[id] == 0 {
				number[id] = len(number) + 1
				fmt.Fprintf(b, "    {%s, %s, %s},\n", cString(in.Library), cString(in.Symbol), cString(in.Layer))
			}
		}
	}
	b.WriteString("    {0}};\n\n")
	return number
}

// HasForeign reports whether m calls functions of other libraries.
func (m *Model) HasForeign() bool {
	for _, prog := range [][]Inst{m.Init, m.Step} {
		for _, in := range prog {
			if in.Foreign {
				return true
			}
		}
	}
	return false
}

func program(b *strings.Builder, name string, prog []Inst, foreign map[foreignID]int) {
	var args []int64
	var targets []int32
	var rows strings.Builder
	layer := map[string]string{} // one literal for each layer: the compiler merges them, its input need not be large
	for _, in := range prog {
		first, firstTarget := len(args), len(targets)
		kind, wait, fn, index, number := "RP_LAUNCH", 0, "NULL", 0, 0
		symbol, tiles := in.Symbol, in.Tiles
		switch in.Kind {
		case Launch:
			if fn = in.Symbol; in.Foreign {
				fn, number = "NULL", foreign[foreignID{in.Library, in.Symbol}]
			}
			for _, a := range in.Args {
				args = append(args, a.encode())
			}
		case Print:
			fn, symbol, tiles = "rp_print", "print", 1
			for _, a := range in.Args {
				args = append(args, a.encode())
			}
		case Check:
			kind, symbol, tiles = "RP_CHECK", in.Message, in.Pred.Bytes
			args = append(args, in.Pred.encode())
		case Jump:
			kind = "RP_JUMP"
		case BranchIfFalse:
			kind = "RP_BRANCH_IF_FALSE"
			args = append(args, in.Pred.encode())
		case Case:
			kind = "RP_CASE"
			index = int(in.Index.Size())
			args = append(args, in.Pred.encode())
		}
		if in.Wait {
			wait = 1
		}
		for _, t := range in.Targets {
			targets = append(targets, int32(t))
		}
		if layer[in.Layer] == "" {
			layer[in.Layer] = cString(in.Layer)
		}
		fmt.Fprintf(&rows, "    {%s, %d, %d, %d, %d, %d, %s, %s, %s, %s_targets + %d, %d, %d},\n", kind, wait, index, len(args)-first, first, tiles,
			fn, cString(symbol), layer[in.Layer], name, firstTarget, len(in.Targets), number)
	}
	numbers(b, "int64_t", name+"_args", args)
	numbers(b, "int32_t", name+"_targets", targets)
	fmt.Fprintf(b, "static const rp_inst %s_insts[] = {\n%s    {0}};\n\n", name, rows.String())
}

// opTable writes the op runs, those of one op together.
func opTable(b *strings.Builder, runs []OpRun) {
	sorted := SortOps(runs)
	b.WriteString("static const rp_op ops[] = {\n")
	for _, r := range sorted {
		fmt.Fprintf(b, "    {%s, %s, %d, %d, %d, %d, %d, %d},\n", cString(r.Name), cString(r.Layer), r.Op, r.Sub, r.Clone, r.Planned, r.Entry, r.Repeat)
	}
	b.WriteString("    {0}};\n\n")
}

// SortOps brings the runs of one op together: the order of the signature and of the counters.
func SortOps(runs []OpRun) []OpRun {
	sorted := slices.Clone(runs)
	slices.SortStableFunc(sorted, func(a, b OpRun) int { return cmp.Or(a.Op-b.Op, a.Sub-b.Sub, a.Clone-b.Clone) })
	return sorted
}

// cHeader is the C header of a shared model: the interface and, as a comment,
// the values that may be bound, read and written.
func cHeader(m *Model, text string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "/* %s for %s: %d bytes of arena.\n *\n", comment(m.Name), comment(m.Target), m.ArenaBytes)
	values := slices.Clone(m.Values)
	slices.SortStableFunc(values, func(a, b Value) int { return -cmp.Compare(rank(a.Role), rank(b.Role)) })
	for _, v := range values {
		if v.Role == RoleKey || v.Role == RoleStep {
			continue
		}
		dims := make([]string, len(v.Shape))
		for i, s := range v.Shape {
			dims[i] = fmt.Sprint(s)
		}
		fmt.Fprintf(&b, " *   %-7s %-40s %s[%s], %d bytes\n", v.Role, comment(v.Name), v.DType, strings.Join(dims, ","), v.Bytes)
	}
	b.WriteString(" */\n")
	return b.String() + text
}

// rank puts inputs and outputs first.
func rank(r Role) int {
	switch r {
	case RoleInput:
		return 2
	case RoleOutput:
		return 1
	}
	return 0
}

func comment(s string) string { return strings.ReplaceAll(s, "*/", "* /") }
