package ir

import (
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"reprise/internal/diag"
	"reprise/ir/dtype"
	"reprise/ir/tensor"
)

// Limits of the text form, so that a hostile file can't exhaust memory.
const (
	maxRank     = 16
	maxTypeSize = int64(1) << 46 // bytes of one value
	maxDense    = int64(1) << 31 // bytes of one constant
	maxSplat    = int64(1) << 28 // bytes of one that is written as a single element
	maxNesting  = 64
)

// Parse reads the text form. file is for messages; an error is a *diag.Error with line
// and column. The module is also verified.
func Parse(t *Table, file, src string) (m *Module, err error) {
	defer diag.Catch(&err)
	p := &parser{table: t, file: file, src: src, line: 1, col: 1}
	p.next()
	m = p.module()
	if err := Verify(m); err != nil {
		e := *diag.As(err)
		if e.File == "" {
			e.File = file
		}
		return nil, &e
	}
	return m, nil
}

type tokKind uint8

const (
	tokEOF   tokKind = iota
	tokName          // word or number: letters, digits, . _ $ / - +
	tokValue         // %name
	tokFunc          // @name
	tokStr
	tokPunct
)

type tok struct {
	kind      tokKind
	text      string
	line, col int
}

type parser struct {
	table     *Table
	file, src string
	pos       int
	line, col int
	t         tok

	fn    *Func
	scope map[string]*Value
	names map[string]bool
	depth int
}

func (p *parser) fail(t tok, format string, args ...any) {
	diag.Throw(&diag.Error{Code: "parse", Message: fmt.Sprintf(format, args...), File: p.file, Line: t.line, Col: t.col})
}

func (p *parser) advance(n int) {
	for _, r := range p.src[p.pos : p.pos+n] {
		if r == '\n' {
			p.line++
			p.col = 1
		} else {
			p.col++
		}
	}
	p.pos += n
}

// next reads the next token into p.t.
func (p *parser) next() {
	for p.pos < len(p.src) {
		c := p.src[p.pos]
		if c == ' ' || c == '\t' || c == '\n' || c == '\r' {
			p.advance(1)
		} else if strings.HasPrefix(p.src[p.pos:], "//") {
			n := strings.IndexByte(p.src[p.pos:], '\n')
			if n < 0 {
				n = len(p.src) - p.pos
			}
			p.advance(n)
		} else {
			break
		}
	}
	p.t = tok{line: p.line, col: p.col}
	if p.pos >= len(p.src) {
		return
	}
	rest := p.src[p.pos:]
	switch c := rest[0]; {
	case c == '"':
		p.t.kind = tokStr
		s, err := strconv.QuotedPrefix(rest)
		if err != nil {
			p.fail(p.t, "string without an end")
		}
		p.t.text, _ = strconv.Unquote(s)
		p.advance(len(s))
	case c == '%' || c == '@':
		p.t.kind = tokValue
		if c == '@' {
			p.t.kind = tokFunc
		}
		p.advance(1)
		if strings.HasPrefix(p.src[p.pos:], `"`) {
			at := p.t
			kind := p.t.kind
			p.next()
			p.t = tok{kind, p.t.text, at.line, at.col}
			return
		}
		p.t.text = p.word()
		if p.t.text == "" {
			p.fail(p.t, "a name must follow %q", string(c))
		}
	case isWordByte(c):
		p.t.kind = tokName
		p.t.text = p.word()
	default:
		p.t.kind = tokPunct
		n := 1
		if strings.HasPrefix(rest, "->") {
			n = 2
		} else if _, size := utf8.DecodeRuneInString(rest); size > 1 {
			n = size
		}
		p.t.text = rest[:n]
		p.advance(n)
	}
}

func isWordByte(c byte) bool {
	return isNameRune(rune(c)) && c < 0x80 || c == '+' || c == '-'
}

func (p *parser) word() string {
	n := 0
	for p.pos+n < len(p.src) && isWordByte(p.src[p.pos+n]) && !strings.HasPrefix(p.src[p.pos+n:], "->") {
		n++
	}
	if n == 0 && strings.HasPrefix(p.src[p.pos:], "->") {
		p.t.kind = tokPunct
		p.advance(2)
		return "->"
	}
	s := p.src[p.pos : p.pos+n]
	p.advance(n)
	return s
}

func (p *parser) is(text string) bool {
	return (p.t.kind == tokPunct || p.t.kind == tokName) && p.t.text == text
}

func (p *parser) accept(text string) bool {
	if p.is(text) {
		p.next()
		return true
	}
	return false
}

func (p *parser) describe(t tok) string {
	switch t.kind {
	case tokEOF:
		return "the end of the file"
	case tokValue:
		return "%" + t.text
	case tokFunc:
		return "@" + t.text
	}
	return strconv.Quote(t.text)
}

func (p *parser) expect(text string) {
	if !p.accept(text) {
		p.fail(p.t, "want %q, found %s", text, p.describe(p.t))
	}
}

func (p *parser) take(kind tokKind, what string) string {
	if p.t.kind != kind {
		p.fail(p.t, "want %s, found %s", what, p.describe(p.t))
	}
	s := p.t.text
	p.next()
	return s
}

func (p *parser) module() *Module {
	m := NewModule("")
	if p.accept("module") {
		m.Name = p.take(tokStr, "the module's name in quotes")
		m.Attrs = p.attrs()
	}
	for p.t.kind != tokEOF {
		p.function(m)
	}
	if len(m.Funcs) == 0 {
		p.fail(p.t, "no function")
	}
	return m
}

func (p *parser) function(m *Module) {
	p.expect("func")
	at := p.t
	name := p.take(tokFunc, "a function's name (@step)")
	if m.Func(name) != nil {
		p.fail(at, "a second function @%s", name)
	}
	f := m.NewFunc(name)
	p.fn, p.scope, p.names = f, map[string]*Value{}, map[string]bool{}
	p.expect("(")
	p.params(f.Body)
	p.expect("->")
	p.expect("(")
	for !p.accept(")") {
		if p.t.kind == tokStr {
			f.Results = append(f.Results, p.take(tokStr, ""))
		} else {
			f.Results = append(f.Results, p.take(tokName, "a result's name"))
		}
		if !p.is(")") {
			p.expect(",")
		}
	}
	p.expect("{")
	p.block(f.Body, "return")
	// Ids follow the order of the text, as the printer counts them.
	f.Renumber()
}

func (p *parser) define(v *Value, at tok) {
	if p.names[v.Name] {
		p.fail(at, "%%%s is defined twice", v.Name)
	}
	p.names[v.Name] = true
	p.scope[v.Name] = v
}

// params reads "%x: f32[2] {…}, …)".
func (p *parser) params(b *Block) {
	for !p.accept(")") {
		at := p.t
		name := p.take(tokValue, "a parameter (%x)")
		p.expect(":")
		t := p.typ()
		v := b.AddParam(name, t, p.attrs()...)
		p.define(v, at)
		if !p.is(")") {
			p.expect(",")
		}
	}
}

func (p *parser) typ() Type {
	at := p.t
	d, err := dtype.Parse(p.take(tokName, "a type (f32[2,3])"))
	if err != nil {
		p.fail(at, "%v", err)
	}
	t := Type{DType: d, Shape: []int64{}}
	p.expect("[")
	size := d.Size()
	for !p.accept("]") {
		dim := p.t
		n, err := strconv.ParseInt(p.take(tokName, "a size"), 10, 64)
		if err != nil || n < 0 {
			p.fail(dim, "size %q is not a whole number of at least 0", dim.text)
		}
		if n > 0 && size > maxTypeSize/n {
			p.fail(at, "type of more than 2^46 bytes")
		}
		if n > 0 {
			size *= n
		}
		t.Shape = append(t.Shape, n)
		if !p.is("]") {
			p.expect(",")
		}
	}
	if len(t.Shape) > maxRank {
		p.fail(at, "%d dimensions, at most %d are allowed", len(t.Shape), maxRank)
	}
	return t
}

func (p *parser) attrs() Attrs {
	var as Attrs
	if !p.accept("{") {
		return nil
	}
	for !p.accept("}") {
		at := p.t
		name := p.take(tokName, "an attribute's name")
		if as.Get(name) != nil {
			p.fail(at, "attribute %q twice", name)
		}
		p.expect("=")
		as = as.Set(name, p.attrVal())
		if !p.is("}") {
			p.expect(",")
		}
	}
	return as
}

func (p *parser) attrVal() any {
	at := p.t
	switch {
	case at.kind == tokStr:
		p.next()
		return at.text
	case p.accept("["):
		ints := []int64{}
		for !p.accept("]") {
			ints = append(ints, p.int())
			if !p.is("]") {
				p.expect(",")
			}
		}
		return ints
	case p.accept("strs"):
		p.expect("[")
		strs := []string{}
		for !p.accept("]") {
			strs = append(strs, p.take(tokStr, "a string"))
			if !p.is("]") {
				p.expect(",")
			}
		}
		return strs
	case p.accept("dense"):
		return p.dense()
	case p.accept("true"):
		return true
	case p.accept("false"):
		return false
	case at.kind != tokName:
		p.fail(at, "want an attribute's value, found %s", p.describe(at))
	}
	p.next()
	if d, err := dtype.Parse(at.text); err == nil {
		return d
	}
	if i, err := strconv.ParseInt(at.text, 10, 64); err == nil {
		return i
	}
	if f, err := strconv.ParseFloat(at.text, 64); err == nil && !strings.HasPrefix(at.text, "0x") {
		return f
	}
	p.fail(at, "%q is no number, word, string, list or dense(…)", at.text)
	return nil
}

func (p *parser) int() int64 {
	at := p.t
	i, err := strconv.ParseInt(p.take(tokName, "a whole number"), 10, 64)
	if err != nil {
		p.fail(at, "%q is not a whole number", at.text)
	}
	return i
}

func (p *parser) dense() *tensor.Tensor {
	p.expect("(")
	at := p.t
	ty := p.typ()
	if ty.Bytes() > maxDense {
		p.fail(at, "constant of more than 2^31 bytes")
	}
	p.expect(":")
	if p.t.kind == tokName && p.t.text == "x" {
		p.next()
		at = p.t
		raw, err := hex.DecodeString(p.take(tokStr, "hexadecimal bytes"))
		if err != nil || int64(len(raw)) != ty.Bytes() {
			p.fail(at, "want %d bytes in hexadecimal for %s", ty.Bytes(), ty)
		}
		p.expect(")")
		t := tensor.New(ty.DType, ty.Shape...)
		copy(t.Data, raw)
		return t
	}
	if ty.DType == dtype.Key {
		p.fail(at, "a key is written as bytes: x\"…\"")
	}
	splat := p.accept("splat")
	if splat && ty.Bytes() > maxSplat {
		p.fail(at, "splat of more than 2^28 bytes: broadcast a scalar instead")
	}
	// Elements are read before the tensor is made: a short list can't ask for much memory.
	var elems []uint64
	for !p.accept(")") {
		elems = append(elems, p.elem(ty.DType))
		if !p.is(")") {
			p.expect(",")
		}
	}
	want := ty.Len()
	if splat {
		want = 1
	}
	if int64(len(elems)) != want {
		p.fail(at, "%d elements, want %d for %s", len(elems), want, ty)
	}
	t := tensor.New(ty.DType, ty.Shape...)
	for i := range t.Len() {
		if splat {
			t.SetBits(i, elems[0])
		} else {
			t.SetBits(i, elems[i])
		}
	}
	return t
}

func (p *parser) elem(d dtype.Type) uint64 {
	at := p.t
	s := p.take(tokName, "an element")
	bits := int(8 * d.Size())
	if h, ok := strings.CutPrefix(s, "0x"); ok {
		v, err := strconv.ParseUint(h, 16, bits)
		if err != nil {
			p.fail(at, "%q does not fit %v", s, d)
		}
		return v
	}
	var err error
	var v uint64
	switch {
	case d == dtype.Bool:
		var b bool
		if b, err = strconv.ParseBool(s); b {
			v = 1
		}
	case d == dtype.F32:
		var f float64
		f, err = strconv.ParseFloat(s, 32)
		v = uint64(math.Float32bits(float32(f)))
	case d == dtype.F64:
		var f float64
		f, err = strconv.ParseFloat(s, 64)
		v = math.Float64bits(f)
	case d.IsSigned():
		var i int64
		i, err = strconv.ParseInt(s, 10, bits)
		v = uint64(i)
	case d.IsUnsigned():
		v, err = strconv.ParseUint(s, 10, bits)
	default:
		err = fmt.Errorf("write %v elements as bits (0x…)", d)
	}
	if err != nil {
		p.fail(at, "element %q of %v: %v", s, d, err)
	}
	return v
}

func (p *parser) uses(stop func() bool) []*Value {
	var vs []*Value
	for !stop() {
		at := p.t
		name := p.take(tokValue, "a value (%x)")
		v := p.scope[name]
		if v == nil {
			if p.names[name] {
				p.fail(at, "%%%s is not visible here: a region sees its own parameters only", name)
			}
			p.fail(at, "%%%s is not defined before its use", name)
		}
		vs = append(vs, v)
		if !p.accept(",") {
			break
		}
	}
	return vs
}

// block reads ops up to and with "return …" or "yield …" and "}".
func (p *parser) block(b *Block, end string) {
	if p.depth++; p.depth > maxNesting {
		p.fail(p.t, "regions nested more than %d deep", maxNesting)
	}
	for !p.is(end) {
		if p.t.kind == tokEOF || p.is("}") {
			p.fail(p.t, "want an operation or %q, found %s", end, p.describe(p.t))
		}
		p.op(b)
	}
	p.next()
	b.Results = p.uses(func() bool { return p.t.kind != tokValue })
	p.expect("}")
	p.depth--
}

func (p *parser) op(b *Block) {
	start := p.t
	var names []tok
	if p.t.kind == tokValue {
		for {
			names = append(names, p.t)
			p.take(tokValue, "a result (%x)")
			if !p.accept(",") {
				break
			}
		}
		p.expect("=")
	}
	at := p.t
	opName := p.take(tokName, "an operation")
	def := p.table.Lookup(opName)
	if def == nil {
		p.fail(at, "unknown operation %q", opName)
	}
	operands := p.uses(func() bool { return p.t.kind != tokValue })
	attrs := p.attrs()
	var types []Type
	var marks []Attrs
	if p.accept(":") {
		for {
			types = append(types, p.typ())
			marks = append(marks, p.marks())
			if !p.accept(",") {
				break
			}
		}
	}
	shown := ""
	markAt := p.t
	for p.accept("!") {
		shown += " !" + p.take(tokName, "a mark")
	}
	var orig *Op
	if p.accept("remat") {
		p.expect("(")
		at := p.t
		v := p.uses(func() bool { return p.t.kind != tokValue })
		if len(v) != 1 || v[0].Op == nil {
			p.fail(at, "remat( ) wants one value that an operation has made")
		}
		orig = v[0].Op
		p.expect(")")
	}
	loc := p.loc()
	if loc.Layer == "" {
		p.fail(p.t, "loc(layer) is missing after %s", opName)
	}
	var regions []*Block
	for p.accept("(") {
		r := p.fn.NewRegion()
		outer := p.scope
		p.scope = map[string]*Value{}
		p.params(r)
		p.expect("{")
		p.block(r, "yield")
		p.scope = outer
		regions = append(regions, r)
	}
	op, err := p.fn.MakeOp(def, operands, attrs, regions, loc)
	if err != nil {
		e := *diag.As(err)
		e.File, e.Line, e.Col = p.file, start.line, start.col
		diag.Throw(&e)
	}
	if len(names) != len(op.Results) || len(types) != len(op.Results) {
		p.fail(start, "%s has %d results, but %d names and %d types are written", opName, len(op.Results), len(names), len(types))
	}
	op.Remat = orig
	b.Append(op)
	for i, r := range op.Results {
		if !r.Type.Equal(types[i]) {
			p.fail(start, "%s gives %s, not %s", opName, r.Type, types[i])
		}
		r.Name, r.Attrs = names[i].text, marks[i]
		p.define(r, names[i])
	}
	if want := op.marks(); shown != "" && shown != want {
		p.fail(markAt, "%s has the marks %q, not %q", opName, want, shown)
	}
}

// marks reads {name="…", pin=true} after a result's type.
func (p *parser) marks() Attrs {
	at := p.t
	as := p.attrs()
	for _, a := range as {
		_, str := a.Val.(string)
		_, flag := a.Val.(bool)
		if !(a.Name == "name" && str || a.Name == "pin" && flag) {
			p.fail(at, "a result may have name=\"…\" and pin=true, not %s", a.Name)
		}
	}
	return as
}

func (p *parser) loc() Loc {
	var l Loc
	if !p.accept("loc") {
		return l
	}
	p.expect("(")
	if p.t.kind == tokStr {
		l.Layer = p.take(tokStr, "")
	} else {
		l.Layer = p.take(tokName, "a layer path")
	}
	for p.accept("~") {
		l.Prov = append(l.Prov, p.take(tokName, "a provenance"))
	}
	if p.t.kind == tokStr {
		l.File = p.take(tokStr, "")
		p.expect(":")
		l.Line = int(p.int())
	}
	p.expect(")")
	return l
}
