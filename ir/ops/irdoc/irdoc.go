// Package irdoc writes docs/ir.md, the reference of the IR, from the op table, so that it
// can't age.
package irdoc

import (
	_ "embed" // the introduction
	"fmt"
	"strings"

	"reprise/ir"
)

//go:embed intro.md
var intro string

// families are the sections in their order, with a line of introduction.
func families() [][3]string {
	return [][3]string{
		{"elementwise", "Elementwise", "All operands have one shape; broadcasting is an op of its own. f16 and bf16 compute in f32 and round."},
		{"shape", "Shape", "Elements are made and moved, not computed with."},
		{"reduce", "Reductions", ""},
		{"contract", "Contractions", ""},
		{"window", "Convolution and windows", ""},
		{"index", "Indexing", "Updates are added in one fixed order, without atomics."},
		{"sort", "Sorting", ""},
		{"scan", "Cumulative ops", ""},
		{"random", "Random numbers", "Counter-based: the bits depend on the key, the op's id and the element's index, and on nothing else (docs/numerics.md)."},
		{"nn", "Neural-network composites", "Each means its expansion, bit for bit, and has a derivative that recomputes row statistics instead of keeping them."},
		{"loss", "Losses", ""},
		{"attention", "Attention", ""},
		{"optim", "Optimizers", ""},
		{"control", "Control flow", ""},
		{"collective", "Collectives", ""},
		{"foreign", "Foreign kernels and the host", ""},
	}
}

// Markdown is the text of docs/ir.md. Rows of a family without a section are an error.
func Markdown(t *ir.Table) (string, error) {
	var b strings.Builder
	b.WriteString("<!-- Written by `go test ./ir/ops/irdoc -update` from the op table. Do not edit. -->\n\n")
	b.WriteString(intro)
	b.WriteString("\n## Ops\n")
	left := len(t.All())
	for _, f := range families() {
		fmt.Fprintf(&b, "\n- **%s**:", f[1])
		for _, d := range t.All() {
			if d.Family == f[0] {
				fmt.Fprintf(&b, " [`%s`](#%s)", d.Name, d.Name)
				left--
			}
		}
	}
	if left != 0 {
		return "", fmt.Errorf("%d rows belong to families without a section", left)
	}
	b.WriteString("\n")
	for _, f := range families() {
		fmt.Fprintf(&b, "\n## %s\n", f[1])
		if f[2] != "" {
			fmt.Fprintf(&b, "\n%s\n", f[2])
		}
		for _, d := range t.All() {
			if d.Family == f[0] {
				row(&b, d)
			}
		}
	}
	return b.String(), nil
}

func row(b *strings.Builder, d *ir.OpDef) {
	fmt.Fprintf(b, "\n### %s\n\n", d.Name)
	fmt.Fprintf(b, "`%s`\n\n%s\n", signature(d), d.Doc)
	if len(d.Attrs) > 0 {
		b.WriteString("\n| attribute | kind | default | |\n|---|---|---|---|\n")
		for _, a := range d.Attrs {
			fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", a.Name, a.Kind, defaultText(a.Default), cell(a.Doc))
		}
	}
	if len(d.Constraints) > 0 {
		b.WriteString("\n")
		for _, c := range d.Constraints {
			fmt.Fprintf(b, "- **%s** %s\n", c.Label, c.Text)
		}
	}
	b.WriteString("\n*" + strings.Join(facts(d), " · ") + "*\n")
}

func cell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }

func defaultText(v any) string {
	switch v := v.(type) {
	case nil:
		return "required"
	case string:
		return fmt.Sprintf("`%q`", v)
	case []int64, []string:
		if fmt.Sprint(v) == "[]" {
			return "`[]`"
		}
	}
	return fmt.Sprintf("`%v`", v)
}

// signature is "a, b = op x, y {attributes} (regions)".
func signature(d *ir.OpDef) string {
	list := func(names []string) string {
		out := make([]string, len(names))
		for i, n := range names {
			out[i] = "%" + n
		}
		return strings.Join(out, ", ")
	}
	s := d.Name
	if len(d.Results) > 0 {
		s = list(d.Results) + " = " + s
	}
	if len(d.Operands) > 0 {
		s += " " + list(d.Operands)
	}
	if len(d.Attrs) > 0 {
		s += " {…}"
	}
	for _, r := range d.Regions {
		s += " (" + r + ")"
	}
	return s
}

// facts are derivative, kernel, and whether effect or determinism are other than none and exact.
func facts(d *ir.OpDef) []string {
	var out []string
	switch {
	case d.VJP != nil:
		out = append(out, "derivative: by a rule")
	case d.NoGradZero:
		out = append(out, "derivative: zero ("+d.NoGrad+")")
	default:
		out = append(out, "derivative: none ("+d.NoGrad+")")
	}
	switch {
	case d.HandScheduled != "" && (d.Elem != nil || d.Kern != nil || d.Expand != nil):
		out = append(out, "kernel: "+d.HandScheduled+", or the generic one")
	case d.HandScheduled != "":
		out = append(out, "kernel: "+d.HandScheduled)
	case d.Elem != nil:
		out = append(out, "kernel: map")
	case d.Kern != nil:
		out = append(out, "kernel: its own")
	case d.Expand != nil:
		out = append(out, "kernel: by expansion")
	}
	if d.Routes != nil {
		var names []string
		for _, i := range d.Routes(&ir.Op{Def: d, Operands: make([]*ir.Value, len(d.Operands))}) {
			names = append(names, "`"+d.Operands[i]+"`")
		}
		out = append(out, "routes by "+strings.Join(names, ", "))
	}
	if d.Effect != nil {
		out = append(out, "has an effect")
	}
	if d.Det != nil {
		out = append(out, "determinism by attributes and operands")
	}
	return out
}
