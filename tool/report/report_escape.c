// SPDX-License-Identifier: Apache-2.0
// Writes text and numbers for HTML and JSON.
#include <math.h>

#include "report/report_page.h"

void html_escape(FILE *out, const char *text) {
    for (; *text != '\0'; text++) switch (*text) {
        case '&': fputs("&amp;", out); break;
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '"': fputs("&quot;", out); break;
        case '\'': fputs("&#39;", out); break;
        default: fputc(*text, out);
        }
}

void json_escape(FILE *out, const char *text) {
    fputc('"', out);
    for (; *text != '\0'; text++) {
        unsigned char byte = (unsigned char)*text;
        if (byte == '"' || byte == '\\')
            fprintf(out, "\\%c", byte);
        else if (byte < 0x20 || byte == '<' || byte == '>' || byte == '&')
            fprintf(out, "\\u%04x", byte);
        else
            fputc(byte, out);
    }
    fputc('"', out);
}

void json_number(FILE *out, double number) {
    if (isfinite(number))
        fprintf(out, "%.10g", number);
    else
        fputs("null", out);
}
