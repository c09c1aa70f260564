# lookups-*.tsv -> rows of {symbol, version, flags}, in order.
/^#/ { next }
{ printf "{\"%s\", %s, %s},\n", $1, $2, $3 }
