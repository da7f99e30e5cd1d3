package exe

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"reprise/ir/dtype"
)

// tables is the generated source of a model and the binary data beside it. What grows with the program stands
// in assembly, which takes a fifth of the time that the same arrays take in C.
type tables struct {
	c       string // model.c
	asm     string // data.s, which model.c includes and which includes the three files below
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

// layouts holds the assembly to the structures of rp.h.
const layouts = `#define AT(type, field, offset) _Static_assert(offsetof(type, field) == offset, "data.s")
AT(rp_inst, kind, 0); AT(rp_inst, wait, 1); AT(rp_inst, index_bytes, 2); AT(rp_inst, nargs, 4); AT(rp_inst, first, 8); AT(rp_inst, tiles, 16);
AT(rp_inst, fn, 24); AT(rp_inst, symbol, 32); AT(rp_inst, layer, 40); AT(rp_inst, targets, 48); AT(rp_inst, ntargets, 56); AT(rp_inst, foreign, 60);
AT(rp_op, name, 0); AT(rp_op, layer, 8); AT(rp_op, op, 16); AT(rp_op, sub, 20); AT(rp_op, clone, 24); AT(rp_op, planned, 28); AT(rp_op, entry, 32); AT(rp_op, again, 40);
_Static_assert(sizeof(rp_inst) == 64 && sizeof(rp_op) == 48, "data.s");
`

// assembly is data.s while it is written.
type assembly struct {
	strings.Builder
	texts map[string]int // strings, by their labels
	order []string
}

// text is the label of a string, which stands once however often it is used.
func (a *assembly) text(s string) string {
	n, ok := a.texts[s]
	if !ok {
		n = len(a.texts)
		a.texts[s] = n
		a.order = append(a.order, s)
	}
	return ".Ltext" + strconv.Itoa(n)
}

// array starts an array that model.c declares.
func (a *assembly) array(section, name string) {
	fmt.Fprintf(a, ".section %s\n.balign 8\n.globl %s\n.hidden %[2]s\n%[2]s:\n", section, name)
}

// Sections of constants that hold no addresses, and of those that do.
const (
	plainSection   = `.rodata, "a", @progbits`
	addressSection = `.data.rel.ro, "aw", @progbits`
)

// numbers writes an array of integers, a few a line.
func numbers[T int32 | int64](a *assembly, directive, name string, xs []T) {
	a.array(plainSection, name)
	for i, x := range xs {
		sep := ","
		if i%16 == 0 {
			sep = "\n" + directive + " "
		}
		a.WriteString(sep)
		a.WriteString(strconv.FormatInt(int64(x), 10))
	}
	a.WriteString("\n")
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
	asm := &assembly{texts: map[string]int{}}
	b.WriteString("/* Generated. */\n#include \"rp.h\"\n\n")

	for _, d := range dtype.All() { // element types go to the driver by number
		name := strings.ToUpper(d.String())
		if d == dtype.Key {
			name = "KEYTYPE"
		}
		fmt.Fprintf(&b, "_Static_assert(RP_%s == %d, \"element types\");\n", name, d)
	}
	b.WriteString("_Static_assert(RP_LAUNCH == 0 && RP_JUMP == 1 && RP_BRANCH_IF_FALSE == 2 && RP_CASE == 3 && RP_CHECK == 4, \"instructions\");\n")
	b.WriteString(layouts + "\n")

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
	b.WriteString("static const int64_t shapes[] = {")
	for _, n := range shapes {
		fmt.Fprintf(&b, "%d, ", n)
	}
	b.WriteString("0};\n")
	fmt.Fprintf(&b, "static const rp_value values[] = {\n%s    {0}};\n\n", rows.String())

	foreign := foreignTable(&b, m)
	loader := "NULL"
	if len(foreign) > 0 {
		loader = "&rp_foreign_loader"
	}
	b.WriteString("extern const rp_inst rp_init_insts[], rp_step_insts[];\nextern const int64_t rp_init_args[], rp_step_args[];\nextern const rp_op rp_ops[];\n")
	initArgs, stepArgs := program(asm, "rp_init", m.Init, foreign), program(asm, "rp_step", m.Step, foreign)
	opTable(asm, m.Ops)

	b.WriteString("static const char *const features[] = {")
	for _, f := range m.Features {
		b.WriteString(cString(f) + ", ")
	}
	b.WriteString("NULL};\n")
	b.WriteString("extern const char *const rp_consts, *const rp_weights;\n")
	b.WriteString("__asm__(\".include \\\"data.s\\\"\"); /* a run of the compiler of its own would take longer than its work */\n\n")
	fmt.Fprintf(&b, `const rp_model rp_the_model = {
    .name = %s, .target = %s, .input_sha256 = %s,
    .features = features, .train = %t, .loss = %d,
    .values = values, .nvalues = %d,
    .init = {rp_init_insts, %d, rp_init_args, %d},
    .step = {rp_step_insts, %d, rp_step_args, %d},
    .ops = rp_ops, .nops = %d, .arena_bytes = %d, .resident_bytes = %d,
    .consts = &rp_consts, .weights = &rp_weights,
    .foreign = foreign, .nforeign = %d, .loader = %s, .library_dir = %s,
};
`, cString(m.Name), cString(m.Target), cString(m.InputSHA256), m.Train, loss, len(values), len(m.Init), initArgs, len(m.Step), stepArgs, len(m.Ops), m.ArenaBytes, m.ResidentBytes, len(foreign), loader, cString(m.LibraryDir))
	t.c = b.String()

	// Large sections: constants and weights may be out of reach of 32-bit
	// displacements, so they come last and are reached by pointers.
	fmt.Fprintf(asm, `.section .lrodata, "al", @progbits
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
	asm.WriteString(".section .rodata.str1.1, \"aMS\", @progbits, 1\n")
	for i, text := range asm.order {
		fmt.Fprintf(asm, ".Ltext%d: .asciz %s\n", i, cString(text))
	}
	asm.WriteString(".text\n") // where the compiler goes on
	t.asm = asm.String()
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

// program writes the tables of a program, rp_inst and what it refers to, and returns the number of arguments.
func program(a *assembly, name string, prog []Inst, foreign map[foreignID]int) int {
	var args []int64
	var targets []int32
	a.array(addressSection, name+"_insts")
	for _, in := range prog {
		first, firstTarget := len(args), len(targets)
		kind, wait, fn, index, number := 0, 0, "0", 0, 0
		symbol, tiles := in.Symbol, in.Tiles
		switch in.Kind {
		case Launch:
			if fn = in.Symbol; in.Foreign {
				fn, number = "0", foreign[foreignID{in.Library, in.Symbol}]
			}
			for _, arg := range in.Args {
				args = append(args, arg.encode())
			}
		case Print:
			fn, symbol, tiles = "rp_print", "print", 1
			for _, arg := range in.Args {
				args = append(args, arg.encode())
			}
		case Check:
			kind, symbol, tiles = 4, in.Message, in.Pred.Bytes
			args = append(args, in.Pred.encode())
		case Jump:
			kind = 1
		case BranchIfFalse:
			kind = 2
			args = append(args, in.Pred.encode())
		case Case:
			kind = 3
			index = int(in.Index.Size())
			args = append(args, in.Pred.encode())
		}
		if in.Wait {
			wait = 1
		}
		for _, t := range in.Targets {
			targets = append(targets, int32(t))
		}
		fmt.Fprintf(a, ".byte %d,%d,%d,0\n.long %d\n.quad %d,%d,%s,%s,%s,%s_targets+%d\n.long %d,%d\n", kind, wait, index, len(args)-first, first, tiles,
			fn, a.text(symbol), a.text(in.Layer), name, 4*firstTarget, len(in.Targets), number)
	}
	numbers(a, ".quad", name+"_args", args)
	numbers(a, ".long", name+"_targets", targets)
	return len(args)
}

// opTable writes the op runs, rp_op, those of one op together.
func opTable(a *assembly, runs []OpRun) {
	a.array(addressSection, "rp_ops")
	for _, r := range SortOps(runs) {
		fmt.Fprintf(a, ".quad %s,%s\n.long %d,%d,%d,%d\n.quad %d,%d\n", a.text(r.Name), a.text(r.Layer), r.Op, r.Sub, r.Clone, r.Planned, r.Entry, r.Repeat)
	}
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
