package ir

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"

	"reprise/ir/dtype"
	"reprise/ir/tensor"
)

// String is the text form of the module; Parse reads it back to an equal module.
func (m *Module) String() string {
	p := &printer{}
	fmt.Fprintf(&p.b, "module %q%s\n", m.Name, attrsText(m.Attrs))
	for _, f := range m.Funcs {
		p.b.WriteByte('\n')
		p.fn(f)
	}
	return p.b.String()
}

// String is the text form of one function.
func (f *Func) String() string {
	p := &printer{}
	p.fn(f)
	return p.b.String()
}

// String is the op's line of the text form, without its regions.
func (op *Op) String() string {
	p := &printer{}
	p.head(op)
	return p.b.String()
}

type printer struct {
	b      strings.Builder
	indent int
}

func (p *printer) line(format string, args ...any) {
	p.b.WriteString(strings.Repeat("  ", p.indent))
	fmt.Fprintf(&p.b, format, args...)
}

func (p *printer) fn(f *Func) {
	p.line("func @%s(%s) -> (%s) {\n", nameText(f.Name), paramsText(f.Body.Params), strings.Join(quoteNames(f.Results), ", "))
	p.block(f.Body, "return")
	p.line("}\n")
}

func quoteNames(names []string) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = nameText(n)
	}
	return out
}

// nameText is a value or layer name, quoted where it is not a plain one.
func nameText(n string) string {
	if isPath(n) {
		return n
	}
	return strconv.Quote(n)
}

func paramsText(ps []*Value) string {
	out := make([]string, len(ps))
	for i, v := range ps {
		out[i] = fmt.Sprintf("%%%s: %s%s", nameText(v.Name), v.Type, attrsText(v.Attrs))
	}
	return strings.Join(out, ", ")
}

func valuesText(vs []*Value) string {
	out := make([]string, len(vs))
	for i, v := range vs {
		out[i] = "%" + nameText(v.Name)
	}
	return strings.Join(out, ", ")
}

func (p *printer) block(b *Block, end string) {
	p.indent++
	for _, op := range b.Ops {
		p.line("")
		p.head(op)
		for _, r := range op.Regions {
			p.b.WriteString(" (" + paramsText(r.Params) + ") {\n")
			p.block(r, "yield")
			p.line("}")
		}
		p.b.WriteByte('\n')
	}
	p.line("%s\n", strings.TrimRight(end+" "+valuesText(b.Results), " "))
	p.indent--
}

func (p *printer) head(op *Op) {
	if len(op.Results) > 0 {
		p.b.WriteString(valuesText(op.Results) + " = ")
	}
	p.b.WriteString(op.Name())
	if len(op.Operands) > 0 {
		p.b.WriteString(" " + valuesText(op.Operands))
	}
	p.b.WriteString(attrsText(op.shownAttrs()))
	if len(op.Results) > 0 {
		types := make([]string, len(op.Results))
		for i, r := range op.Results {
			types[i] = r.Type.String() + attrsText(r.Attrs)
		}
		p.b.WriteString(" : " + strings.Join(types, ", "))
	}
	p.b.WriteString(op.marks())
	if op.Remat != nil {
		p.b.WriteString(" remat(%" + nameText(op.Remat.Results[0].Name) + ")")
	}
	fmt.Fprintf(&p.b, " loc(%s)", op.Loc)
}

// shownAttrs leaves out attributes that have their default value.
func (op *Op) shownAttrs() Attrs {
	var out Attrs
	for _, a := range op.Attrs {
		if ad := op.Def.attr(a.Name); ad != nil && ad.Default != nil && valText(MakeAttrs(A("x", ad.Default))[0].Val) == valText(a.Val) {
			continue
		}
		out = append(out, a)
	}
	return out
}

// marks are the effect and determinism of the op, where not none and exact.
func (op *Op) marks() string {
	s := ""
	if e := op.Effect(); e != EffectNone {
		s += " !" + e.String()
	}
	if d := op.Det(); d != Exact {
		s += " !" + d.String()
	}
	return s
}

func attrsText(as Attrs) string {
	if len(as) == 0 {
		return ""
	}
	out := make([]string, len(as))
	for i, a := range as {
		out[i] = a.Name + "=" + valText(a.Val)
	}
	return " {" + strings.Join(out, ", ") + "}"
}

func valText(v any) string {
	switch v := v.(type) {
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		return floatText(v)
	case bool:
		return strconv.FormatBool(v)
	case string:
		return strconv.Quote(v)
	case []int64:
		out := make([]string, len(v))
		for i, x := range v {
			out[i] = strconv.FormatInt(x, 10)
		}
		return "[" + strings.Join(out, ", ") + "]"
	case []string:
		out := make([]string, len(v))
		for i, x := range v {
			out[i] = strconv.Quote(x)
		}
		return "strs[" + strings.Join(out, ", ") + "]"
	case dtype.Type:
		return v.String()
	case *tensor.Tensor:
		return tensorText(v)
	}
	panic(fmt.Sprintf("BUG: attribute of Go type %T", v))
}

func floatText(v float64) string {
	switch {
	case math.IsNaN(v):
		return "nan"
	case math.IsInf(v, 1):
		return "inf"
	case math.IsInf(v, -1):
		return "-inf"
	}
	s := strconv.FormatFloat(v, 'g', -1, 64)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}

// tensorText writes dense(type: elements), a splat once, long ones as hexadecimal bytes.
func tensorText(t *tensor.Tensor) string {
	ty := Type{t.DType, t.Shape}
	n := t.Len()
	if t.DType == dtype.Key || n > 32 && !isSplat(t) {
		return fmt.Sprintf("dense(%s: x\"%s\")", ty, hex.EncodeToString(t.Data))
	}
	if n > 1 && isSplat(t) {
		return fmt.Sprintf("dense(%s: splat %s)", ty, elemText(t, 0))
	}
	out := make([]string, n)
	for i := range n {
		out[i] = elemText(t, i)
	}
	return fmt.Sprintf("dense(%s: %s)", ty, strings.Join(out, ", "))
}

func isSplat(t *tensor.Tensor) bool {
	n := t.DType.Size()
	return t.Len() == 0 || bytes.Equal(t.Data[n:], t.Data[:int64(len(t.Data))-n]) // each is as the one before
}

// elemText is a decimal that reads back to the same bits, or the bits in hexadecimal.
func elemText(t *tensor.Tensor, i int64) string {
	b := t.Bits(i)
	switch d := t.DType; {
	case d == dtype.Bool:
		if b <= 1 {
			return strconv.FormatBool(b == 1)
		}
	case d == dtype.F32:
		if f := math.Float32frombits(uint32(b)); !math.IsNaN(float64(f)) && !math.IsInf(float64(f), 0) {
			return strconv.FormatFloat(float64(f), 'g', -1, 32)
		}
	case d == dtype.F64:
		if f := math.Float64frombits(b); !math.IsNaN(f) && !math.IsInf(f, 0) {
			return strconv.FormatFloat(f, 'g', -1, 64)
		}
	case d.IsSigned():
		shift := 64 - 8*d.Size()
		return strconv.FormatInt(int64(b<<shift)>>shift, 10)
	case d.IsUnsigned():
		return strconv.FormatUint(b, 10)
	}
	return fmt.Sprintf("0x%x", b)
}

// String is the text form of a list of attributes, " {a=1}", or "".
func (as Attrs) String() string { return attrsText(as) }
