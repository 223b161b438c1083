"""How heterogeneous the clients' data are: labels, amounts, features, and the relation between both."""
